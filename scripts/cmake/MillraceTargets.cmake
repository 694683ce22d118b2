# millrace_library(NAME planner SRCS a.cc DEPS millrace::base absl::status)
#   A library millrace::NAME; sources are relative to the calling folder.
# millrace_test(NAME schedule_test SRCS planner/schedule_test.cc DEPS ... LABELS unit)
#   A GoogleTest program and its ctest entry. Labels: unit (any machine,
#   seconds), sim, e2e, oracle, gpu, multi_gpu.

add_library(millrace_flags INTERFACE)
target_include_directories(millrace_flags INTERFACE
  ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
target_compile_options(millrace_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-Werror>)
# nvcc_checked reads what the assembler reports.
target_compile_options(millrace_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MILLRACE_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  target_link_options(millrace_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()

# Compiles a target's C++ files ten at a time: each header they share is parsed
# once for all, which halves the time to build. So names in the unnamed
# namespaces of a folder must differ. An edit compiles its nine neighbours too.
function(millrace_unity target)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 10)
  # GCC takes a source file that another one includes for a header, and warns of
  # its unnamed namespace.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endfunction()

function(millrace_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(millrace_${ARG_NAME} STATIC ${ARG_SRCS})
  add_library(millrace::${ARG_NAME} ALIAS millrace_${ARG_NAME})
  millrace_unity(millrace_${ARG_NAME})
  target_link_libraries(millrace_${ARG_NAME} PUBLIC millrace_flags ${ARG_DEPS})
endfunction()

# What the sanitizer builds compile: the tests labelled unit or sim.
if(MILLRACE_TESTS)
  add_custom_target(unit_and_sim_tests)
endif()

function(millrace_test)
  if(NOT MILLRACE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${ARG_NAME} ${ARG_SRCS})
  target_link_libraries(${ARG_NAME} PRIVATE
    millrace_flags ${ARG_DEPS} GTest::gmock GTest::gtest_main)
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  set_tests_properties(${ARG_NAME} PROPERTIES
    LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT})
  if("unit" IN_LIST ARG_LABELS OR "sim" IN_LIST ARG_LABELS)
    add_dependencies(unit_and_sim_tests ${ARG_NAME})
  endif()
endfunction()
