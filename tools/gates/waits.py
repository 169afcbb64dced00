"""Reads machine code for the rules of cuda/dependent.cuh, which kernels that are launched early must keep."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# Kernels that may touch memory before they wait; they wait before they end.
OVERLAPPING = ("backward_columns_kernel",)

FUNCTION = re.compile(r"\s*Function : (\S+)")
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@\S+\s+)?([A-Z]\w*)(\S*)\s*([^;]*?)\s*;")
ADDRESS = re.compile(r"0x[0-9a-f]+")

WAIT, LET = "ACQBULK", "PREEXIT"
# Of global memory, also by generic addresses, bulk copies and tensor maps; and prefetches, which CCTL are too.
ACCESS = re.compile(r"LD|LDG|LDGSTS|ST|STG|ATOM|ATOMG|RED|REDG|UBLK\w+|UTMA\w+|TEX|TLD\w*|SULD|SUST|SURED|SUATOM")
GOES_TO = {"BRA", "JMP", "BSSY", "CALL", "WARPSYNC"}  # an address, beside the next instruction
ENDS = {"EXIT", "RET", "BRA", "JMP"}  # if nothing makes them conditional
UNKNOWN = {"BRX", "JMX", "BRXU", "JMXU"}  # an address from a register


@dataclass(frozen=True)
class Instruction:
    address: int
    predicated: bool
    name: str
    suffix: str
    operands: str

    @property
    def accesses(self) -> bool:
        return bool(ACCESS.fullmatch(self.name)) or (self.name == "CCTL" and ".PF" in self.suffix)

    @property
    def leaves(self) -> bool:
        """Whether the next instruction is never reached from here."""
        bare = not self.operands or self.name == "RET" or ADDRESS.fullmatch(self.operands)
        return self.name in ENDS and not self.predicated and bool(bare)


def kernels(lines: Iterable[str]) -> Iterator[tuple[str, list[Instruction]]]:
    """The functions of what ``cuobjdump --dump-sass`` prints."""
    name, code = "", list[Instruction]()
    for line in lines:
        if match := FUNCTION.match(line):
            if name:
                yield name, code
            name, code = match[1], []
        elif match := INSTRUCTION.match(line):
            code.append(Instruction(int(match[1], 16), bool(match[2]), *match.group(3, 4, 5)))
    if name:
        yield name, code


def before_waiting(code: list[Instruction]) -> Iterator[Instruction]:
    """What can be reached from the beginning without a wait on the way."""
    places = {instruction.address: index for index, instruction in enumerate(code)}
    seen, todo = set[int](), [0]
    while todo:
        index = todo.pop()
        while index < len(code) and index not in seen:
            seen.add(index)
            instruction = code[index]
            if instruction.name == WAIT and not instruction.predicated:
                break
            yield instruction
            if instruction.name in GOES_TO:
                todo.extend(
                    places[int(to, 16)] for to in ADDRESS.findall(instruction.operands) if int(to, 16) in places
                )
            if instruction.leaves:
                break
            index += 1


def wrong(name: str, code: list[Instruction]) -> str:
    """What the kernel does before it has waited, though it must not; empty: nothing."""
    for instruction in before_waiting(code):
        what = ""
        if instruction.accesses and not any(kernel in name for kernel in OVERLAPPING):
            what = "touches memory"
        elif instruction.name == "EXIT":
            what = "ends"
        elif instruction.name == LET:
            what = "lets the next kernel start"
        elif instruction.name in UNKNOWN:
            what = "goes to an address that is not known"
        if what:
            said = f"{instruction.name}{instruction.suffix} {instruction.operands}".strip()
            return f"{name} {what} before it waits: {said} at {instruction.address:#x}"
    return ""
