# Writes sbom/fastops.cdx.json (CycloneDX), installed where PEP 770 wants it: what of others is compiled into the binary.
# torch, libstdc++ and, unless linked statically, nanobind's backend are found at run time and belong to the environment.

set(components "")
macro(fastops_component name version purl license use)
  list(APPEND components "    {
      \"type\": \"library\",
      \"bom-ref\": \"${purl}\",
      \"name\": \"${name}\",
      \"version\": \"${version}\",
      \"description\": \"${use}\",
      \"licenses\": [{\"license\": {${license}}}],
      \"purl\": \"${purl}\"
    }")
  list(APPEND references "\"${purl}\"")
endmacro()

if(FASTOPS_STATIC_NANOBIND)
  set(use "linked statically")
else()
  set(use "headers compiled in")
endif()
fastops_component(nanobind ${nanobind_VERSION} pkg:pypi/nanobind@${nanobind_VERSION} "\"id\": \"BSD-3-Clause\"" "${use}")
fastops_component(torch ${FASTOPS_TORCH_VERSION} pkg:pypi/torch@${FASTOPS_TORCH_VERSION}
  "\"id\": \"BSD-3-Clause\"" "headers of the stable ABI compiled in")
if(FASTOPS_CUDA_ENABLED)
  fastops_component(cuda-cudart ${CUDAToolkit_VERSION} pkg:generic/nvidia/cuda-cudart@${CUDAToolkit_VERSION}
    "\"name\": \"NVIDIA CUDA Toolkit EULA\"" "cudart_static, linked statically")
endif()

set(purl pkg:pypi/${FASTOPS_DISTRIBUTION}@${SKBUILD_PROJECT_VERSION_FULL})
# Of the contents, so that one source gives one file.
string(UUID serial NAMESPACE 6ba7b811-9dad-11d1-80b4-00c04fd430c8 TYPE SHA1
  NAME "${purl} ${FASTOPS_GIT_COMMIT} ${components}")
list(JOIN components ",\n" components)
list(JOIN references ", " references)
file(CONFIGURE OUTPUT "${CMAKE_CURRENT_BINARY_DIR}/sbom/fastops.cdx.json" CONTENT [=[
{
  "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
  "bomFormat": "CycloneDX",
  "specVersion": "1.6",
  "serialNumber": "urn:uuid:@serial@",
  "version": 1,
  "metadata": {
    "component": {
      "type": "library",
      "bom-ref": "@purl@",
      "name": "@FASTOPS_DISTRIBUTION@",
      "version": "@SKBUILD_PROJECT_VERSION_FULL@",
      "licenses": [{"license": {"id": "Apache-2.0"}}],
      "purl": "@purl@"
    }
  },
  "components": [
@components@
  ],
  "dependencies": [
    {"ref": "@purl@", "dependsOn": [@references@]}
  ]
}
]=] @ONLY)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/sbom/fastops.cdx.json" DESTINATION "${SKBUILD_METADATA_DIR}/sboms")
