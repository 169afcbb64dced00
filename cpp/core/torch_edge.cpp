#include "core/torch_edge.h"

#include <dlfcn.h>

#include <cstring>

namespace fastops {

std::string text_of(Shape shape) {
  std::string text = "[";
  for (size_t k = 0; k < shape.size(); ++k) text += (k ? ", " : "") + std::to_string(shape[k]);
  return text + "]";
}

const char* text_of(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Half: return "torch.float16";
    case ScalarType::BFloat16: return "torch.bfloat16";
    case ScalarType::Float: return "torch.float32";
    case ScalarType::Double: return "torch.float64";
    case ScalarType::Byte: return "torch.uint8";
    case ScalarType::Char: return "torch.int8";
    case ScalarType::Short: return "torch.int16";
    case ScalarType::Int: return "torch.int32";
    case ScalarType::Long: return "torch.int64";
    case ScalarType::Bool: return "torch.bool";
    case ScalarType::ComplexFloat: return "torch.complex64";
    case ScalarType::ComplexDouble: return "torch.complex128";
    default: return torch::headeronly::toString(dtype);
  }
}

bool same_shape(Shape a, Shape b) {
  return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * sizeof(int64_t)));
}

namespace {

// torch's numbers for our dtypes, in DType's order; torch does not promise which they are.
const int32_t torch_dtypes[] = {aoti_torch_dtype_float16(), aoti_torch_dtype_bfloat16(), aoti_torch_dtype_float32(),
                                aoti_torch_dtype_float64()};

}  // namespace

std::optional<DType> dtype_of(const Tensor& tensor) {
  for (int k = 0; k < 4; ++k)
    if (tensor.torch_dtype() == torch_dtypes[k]) return static_cast<DType>(k);
  return std::nullopt;
}

std::optional<DType> dtype_of(ScalarType dtype) {
  for (DType ours : {DType::f16, DType::bf16, DType::f32, DType::f64})
    if (scalar_type(ours) == dtype) return ours;
  return std::nullopt;
}

ScalarType scalar_type(DType dtype) {
  constexpr ScalarType types[] = {ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double};
  return types[static_cast<int>(dtype)];
}

void torch_failed(const char* what) {
  const std::string_view op = what;
  if (op.ends_with("_reference") && !has_python())
    fail("fastops", op.substr(0, op.size() - std::string_view("_reference").size()),
         " has kernels for float16, bfloat16, float32 and float64 on the CPU and on this build's GPUs; other tensors "
         "run plain PyTorch, and that in Python alone");
  if (op.ends_with("_before") && !has_python())
    fail("fastops", "torch's own kernel behind ", op, " is for Python alone: disable what fastops_enable() enabled");
  // From 2.13 on; before that, torch prints the message to stderr and keeps it to itself.
  using What = const char*();
  static What* const get = reinterpret_cast<What*>(dlsym(RTLD_DEFAULT, "torch_exception_get_what_without_backtrace"));
  static What* const loaded = get ? get : [] {
    void* library = dlopen("libtorch_cpu.so", RTLD_NOLOAD | RTLD_LAZY);
    return library ? reinterpret_cast<What*>(dlsym(library, "torch_exception_get_what_without_backtrace")) : nullptr;
  }();
  fail("fastops", what, " failed in PyTorch", loaded ? ": " : "; its message is on stderr", loaded ? loaded() : "");
}

bool kernels_take(const Tensor& tensor) {
  if (!dtype_of(tensor)) return false;
  return !tensor.is_cuda() || cuda::device(tensor.get_device_index()).group >= 0;
}

bool kernels_take(const Tensor& tensor, std::optional<ScalarType> result) {
  return kernels_take(tensor) && (!result || dtype_of(*result));
}

void check_same_device(const char* op, const char* name, const Tensor& tensor, const char* first_name,
                       const Tensor& first) {
  auto text = [](const Tensor& t) {
    return t.is_cuda() ? "cuda:" + std::to_string(t.get_device_index()) : t.is_cpu() ? "cpu" : "another device";
  };
  FASTOPS_CHECK(same_device(tensor, first), op, name, " must be on ", first_name, "'s device ", text(first), ", got ",
                text(tensor));
}

void check_same_kind(const char* op, const char* name, const Tensor& tensor, const char* like_name,
                     const Tensor& like) {
  check_same_device(op, name, tensor, like_name, like);
  FASTOPS_CHECK(same_dtype(tensor, like), op, name, " must have ", like_name, "'s dtype ", text_of(like.scalar_type()),
                ", got ", text_of(tensor.scalar_type()));
}

void check_alike(const char* op, const char* name, const Tensor& tensor, const char* like_name, const Tensor& like) {
  check_same_kind(op, name, tensor, like_name, like);
  FASTOPS_CHECK(same_shape(tensor.sizes(), like.sizes()), op, name, " must have ", like_name, "'s shape ",
                text_of(like.sizes()), ", got ", text_of(tensor.sizes()));
}

namespace {

Tensor empty_strided(Shape sizes, const int64_t* strides, const Tensor& device_of, int32_t dtype) {
  AtenTensorHandle handle = nullptr;
  check_torch("aten::empty_strided",
              aoti_torch_empty_strided(static_cast<int64_t>(sizes.size()), sizes.data(), strides, dtype,
                                       device_of.device_type(), device_of.get_device_index(), &handle));
  return Tensor(handle);
}

}  // namespace

Tensor allocate_like(const Tensor& like) {
  // The shim is several times cheaper than a call through the dispatcher, but it wants the strides spelled out.
  if (like.is_contiguous()) return empty_strided(like.sizes(), like.strides().data(), like, like.torch_dtype());
  return call<Tensor>("aten::empty_like", like, std::nullopt, std::nullopt, std::nullopt, std::nullopt, std::nullopt);
}

Tensor allocate(Shape sizes, const Tensor& device_of, DType dtype) {
  constexpr size_t usual = 8;
  int64_t few[usual];
  std::vector<int64_t> many(sizes.size() > usual ? sizes.size() : 0);
  int64_t* strides = sizes.size() > usual ? many.data() : few;
  int64_t step = 1;
  for (size_t k = sizes.size(); k-- > 0;) {
    strides[k] = step;
    step *= std::max<int64_t>(sizes[k], 1);
  }
  return empty_strided(sizes, strides, device_of, torch_dtypes[static_cast<int>(dtype)]);
}

Tensor allocate(Shape sizes, Shape strides, const Tensor& device_of, DType dtype) {
  return empty_strided(sizes, strides.data(), device_of, torch_dtypes[static_cast<int>(dtype)]);
}

Tensor allocate_bytes(int64_t count, const Tensor& device_of) {
  const int64_t stride = 1;
  return empty_strided(Shape(&count, 1), &stride, device_of, aoti_torch_dtype_uint8());
}

Tensor as_contiguous(Tensor tensor) {
  if (tensor.is_contiguous()) return tensor;
  return call<Tensor>("aten::contiguous", tensor, torch::headeronly::MemoryFormat::Contiguous);
}

Tensor to_dtype(Tensor tensor, DType dtype) {
  if (dtype_of(tensor) == dtype) return tensor;
  return call<Tensor>("aten::_to_copy", tensor, std::optional(scalar_type(dtype)), std::nullopt, std::nullopt,
                      std::nullopt, false, std::nullopt);
}

void fill_zero(const Tensor& tensor) { call<Tensor>("aten::zero_", tensor); }

}  // namespace fastops
