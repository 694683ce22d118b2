# Every outside library, in one place. All come from Debian 12's packages;
# scripts/dependencies installs them.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Paths inside the project count as relative, so that a second clone finds what
  # the first one compiled. CCACHE_DEPEND takes a file's headers from the list that
  # the compiler writes; without it ccache preprocesses each new file once more.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
    CCACHE_DEPEND=1
    CCACHE_SLOPPINESS=pch_defines,time_macros  # Else nothing precompiled is kept.
    ${CCACHE_PROGRAM})
endif()
set(CMAKE_CUDA_COMPILER_LAUNCHER
  ${PROJECT_SOURCE_DIR}/scripts/cmake/nvcc_checked ${CMAKE_CXX_COMPILER_LAUNCHER})

# The libraries are part of shared ones too.
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_package(Threads REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(absl REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(toml11 REQUIRED)
find_package(Boost 1.74 REQUIRED)
find_package(Protobuf REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(Snappy REQUIRED)
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS SSL)
find_package(PkgConfig REQUIRED)
pkg_check_modules(SENTENCEPIECE REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(HWLOC REQUIRED IMPORTED_TARGET hwloc)
pkg_check_modules(ICU REQUIRED IMPORTED_TARGET icu-uc)
pkg_check_modules(ONIGURUMA REQUIRED IMPORTED_TARGET oniguruma)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)

# Linked in, since the answers of object stores need little of it.
find_library(EXPAT_ARCHIVE NAMES libexpat.a REQUIRED)

# Gloo ships no CMake package in Debian 12.
find_library(GLOO_LIBRARY NAMES gloo REQUIRED)
find_path(GLOO_INCLUDE_DIR gloo/context.h REQUIRED)
add_library(gloo UNKNOWN IMPORTED)
set_target_properties(gloo PROPERTIES
  IMPORTED_LOCATION ${GLOO_LIBRARY}
  INTERFACE_INCLUDE_DIRECTORIES ${GLOO_INCLUDE_DIR})

if(MILLRACE_TESTS)
  find_package(GTest REQUIRED)
endif()

# MILLRACE_CUDA_ENABLED is what the rest of the build asks.
set(MILLRACE_CUDA_ENABLED OFF)
if(NOT MILLRACE_CUDA STREQUAL "off")
  find_program(MILLRACE_NVCC nvcc HINTS /usr/local/cuda/bin)
  if(MILLRACE_NVCC)
    set(MILLRACE_CUDA_ENABLED ON)
  elseif(MILLRACE_CUDA STREQUAL "on")
    message(FATAL_ERROR
      "MILLRACE_CUDA=on, but no nvcc on PATH or in /usr/local/cuda/bin. "
      "Install the CUDA Toolkit 13.0 or configure with -DMILLRACE_CUDA=off.")
  endif()
endif()
if(MILLRACE_CUDA_ENABLED)
  set(CMAKE_CUDA_COMPILER ${MILLRACE_NVCC} CACHE FILEPATH "")
  # Portable kernels take a while for each kind of GPU: `auto` compiles for those
  # of this machine, or where there is none for the oldest and for Hopper, or with
  # tests, which then only show that they compile, for the oldest alone; `all` for
  # Ampere, Ada, Hopper and Blackwell, as a bundle for other machines needs.
  # Kernels named _sm90 are for Hopper alone.
  set(MILLRACE_CUDA_ARCHITECTURES auto CACHE STRING
    "GPUs that the portable kernels are compiled for: auto, all, or CMake's list")
  set(MILLRACE_ALL_CUDA_ARCHITECTURES 80-real 89-real 90a-real 100a-real)
  set(MILLRACE_PORTABLE_ARCHITECTURES ${MILLRACE_CUDA_ARCHITECTURES})
  if(MILLRACE_CUDA_ARCHITECTURES STREQUAL "all")
    set(MILLRACE_PORTABLE_ARCHITECTURES ${MILLRACE_ALL_CUDA_ARCHITECTURES})
  elseif(MILLRACE_CUDA_ARCHITECTURES STREQUAL "auto")
    execute_process(
      COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE capabilities ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+[.][0-9]" capabilities "${capabilities}")
    set(MILLRACE_PORTABLE_ARCHITECTURES "")
    foreach(capability ${capabilities})
      string(REPLACE "." "" number ${capability})
      if(number LESS 89)
        list(APPEND MILLRACE_PORTABLE_ARCHITECTURES 80-real)
      elseif(number EQUAL 90 OR number EQUAL 100)
        list(APPEND MILLRACE_PORTABLE_ARCHITECTURES ${number}a-real)
      else()
        list(APPEND MILLRACE_PORTABLE_ARCHITECTURES ${number}-real)
      endif()
    endforeach()
    list(REMOVE_DUPLICATES MILLRACE_PORTABLE_ARCHITECTURES)
    if(NOT MILLRACE_PORTABLE_ARCHITECTURES AND MILLRACE_TESTS)
      set(MILLRACE_PORTABLE_ARCHITECTURES 80-real)
    elseif(NOT MILLRACE_PORTABLE_ARCHITECTURES)
      set(MILLRACE_PORTABLE_ARCHITECTURES 80-real 90a-real)
    endif()
  endif()
  message(STATUS "portable GPU kernels for ${MILLRACE_PORTABLE_ARCHITECTURES}")
  set(CMAKE_CUDA_ARCHITECTURES "90a-real" CACHE STRING "")
  enable_language(CUDA)
  # CMake 3.25 has no C++20 entry for nvcc; these two variables add it.
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
endif()
if(MILLRACE_CUDA_ENABLED)
  # NCCL ships no CMake package.
  get_filename_component(MILLRACE_CUDA_ROOT ${MILLRACE_NVCC} REALPATH)
  get_filename_component(MILLRACE_CUDA_ROOT ${MILLRACE_CUDA_ROOT}/../.. ABSOLUTE)
  find_library(NCCL_LIBRARY NAMES nccl
    HINTS ${MILLRACE_CUDA_ROOT} PATH_SUFFIXES lib64 lib)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${MILLRACE_CUDA_ROOT}/include)
  if(NOT NCCL_LIBRARY OR NOT NCCL_INCLUDE_DIR)
    message(FATAL_ERROR
      "nvcc is there, but no NCCL (libnccl.so, nccl.h). Install NCCL 2.28.9 or "
      "later, or configure with -DMILLRACE_CUDA=off.")
  endif()
  add_library(nccl UNKNOWN IMPORTED)
  set_target_properties(nccl PROPERTIES
    IMPORTED_LOCATION ${NCCL_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${NCCL_INCLUDE_DIR})
endif()
message(STATUS "GPU code: ${MILLRACE_CUDA_ENABLED} (MILLRACE_CUDA=${MILLRACE_CUDA})")
