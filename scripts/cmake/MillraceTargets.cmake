# millrace_library(NAME planner SRCS a.cc DEPS millrace::base absl::status)
#   A library millrace::NAME; sources are relative to the calling folder.
# millrace_test(NAME schedule_test SRCS planner/schedule_test.cc DEPS ... LABELS unit)
#   Tests with GoogleTest and their ctest entry. Labels: unit (any machine,
#   seconds), sim, e2e, oracle, gpu, multi_gpu; and threads, where several touch
#   the same memory.

add_library(millrace_flags INTERFACE)
target_include_directories(millrace_flags INTERFACE
  ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
target_compile_options(millrace_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wno-missing-field-initializers;-Werror>)
# GCC collects garbage whenever its heap has doubled, and rarely finds any. With
# no collection below 1 GB it takes 5 to 15 % less time and 20 % more memory.
if(MILLRACE_TESTS AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(millrace_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=1000000>)
endif()
# nvcc_checked reads what the assembler reports.
target_compile_options(millrace_flags INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-v>)
if(MILLRACE_SANITIZE)
  target_compile_options(millrace_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${MILLRACE_SANITIZE};-fno-omit-frame-pointer;-fno-sanitize-recover=all>)
  # Where nothing casts pointers, checks of alignment, null, bounds of objects and
  # wrapping of addresses before every access find nothing that the address
  # sanitizer does not, and double the time to compile. Folders that cast (base,
  # fault, kernels, worker) keep them. The option must come after the one above,
  # which would switch them on again: so it stands here, not with the target.
  if(MILLRACE_SANITIZE MATCHES "undefined")
    target_compile_options(millrace_flags INTERFACE
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<BOOL:$<TARGET_PROPERTY:MILLRACE_CASTLESS>>>:-fno-sanitize=null,alignment,vptr,pointer-overflow,object-size>)
  endif()
  target_link_options(millrace_flags INTERFACE -fsanitize=${MILLRACE_SANITIZE})
endif()

# Sets `result` to how many source files are compiled as one.
function(millrace_unity_size result)
  if(MILLRACE_SANITIZE)
    set(${result} 20 PARENT_SCOPE)
  else()
    set(${result} 10 PARENT_SCOPE)
  endif()
endfunction()

# Compiles a target's C++ files several at a time: each header they share is
# parsed once for all, which halves the time to build. So names in the unnamed
# namespaces of a folder must differ. An edit compiles its neighbours too: nine,
# or under the sanitizers, where fewer edit, nineteen.
function(millrace_unity target)
  millrace_unity_size(size)
  set_target_properties(${target} PROPERTIES
    UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${size})
  # GCC takes a source file that another one includes for a header, and warns of
  # its unnamed namespace.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endfunction()

# Leaves those checks out for a target of a folder without casts.
function(millrace_sanitize_less target)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  if(folder MATCHES "^(tests/)?(planner|coordinator|e2e|sim)")
    set_target_properties(${target} PROPERTIES MILLRACE_CASTLESS ON)
  endif()
endfunction()

function(millrace_library)
  cmake_parse_arguments(ARG "" "NAME" "SRCS;DEPS" ${ARGN})
  add_library(millrace_${ARG_NAME} STATIC ${ARG_SRCS})
  add_library(millrace::${ARG_NAME} ALIAS millrace_${ARG_NAME})
  millrace_unity(millrace_${ARG_NAME})
  target_link_libraries(millrace_${ARG_NAME} PUBLIC millrace_flags ${ARG_DEPS})
  millrace_sanitize_less(millrace_${ARG_NAME})
endfunction()

# The sanitizer builds compile parts of the tests: address and undefined behaviour
# those labelled unit or sim, races those labelled threads.
if(MILLRACE_TESTS)
  add_custom_target(unit_and_sim_tests)
  add_custom_target(threads_tests)
endif()

# Sets `result` to a gtest filter for the tests that `sources` define.
function(millrace_test_filter result sources)
  set(filter "")
  foreach(source ${sources})
    get_filename_component(source ${source} ABSOLUTE)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
    file(STRINGS ${source} lines REGEX "^(TYPED_)?TEST(_F|_P)?\\(")
    foreach(line ${lines})
      string(REGEX MATCH "\\(([A-Za-z0-9_]+)," matched "${line}")
      if(NOT matched)
        message(FATAL_ERROR "${source}: write the suite "
          "behind the parenthesis, on the line of '${line}': ctest selects by it")
      endif()
      set(suite ${CMAKE_MATCH_1})
      list(APPEND filter "${suite}.*" "*/${suite}.*" "${suite}/*")
    endforeach()
  endforeach()
  list(REMOVE_DUPLICATES filter)
  list(JOIN filter ":" filter)
  set(${result} "${filter}" PARENT_SCOPE)
endfunction()

# Compiles `source` of the test program `program` together with others of its area,
# as many as millrace_unity takes and for the same reason. An area is a folder of
# tests/ with all below it; the folders of tests/planner/ and tests/kernels/ are one
# each. So names in the unnamed namespaces of an area's tests must differ.
function(millrace_test_unity program source)
  file(RELATIVE_PATH area ${PROJECT_SOURCE_DIR} ${source})
  string(REGEX MATCH "^tests/((planner|kernels)/)?[^/]+" area ${area})
  string(REPLACE "/" "_" area ${area})
  get_target_property(count ${program} MILLRACE_COUNT_${area})
  if(NOT count)
    set(count 0)
  endif()
  millrace_unity_size(size)
  math(EXPR batch "${count} / ${size}")
  math(EXPR count "${count} + 1")
  set_target_properties(${program} PROPERTIES
    MILLRACE_COUNT_${area} ${count} UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  set_source_files_properties(${source} PROPERTIES
    UNITY_GROUP ${area}_${batch})
endfunction()

# Precompiles tests/precompiled.h with the first test program, for all of them.
function(millrace_test_precompile program)
  get_property(first GLOBAL PROPERTY MILLRACE_FIRST_TEST_PROGRAM)
  if(first)
    target_precompile_headers(${program} REUSE_FROM ${first})
  else()
    target_precompile_headers(${program} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:${PROJECT_SOURCE_DIR}/tests/precompiled.h>)
    set_property(GLOBAL PROPERTY MILLRACE_FIRST_TEST_PROGRAM ${program})
  endif()
endfunction()

# Where GROUP is given, tests of one group are one program, which is linked once
# for all; each keeps its ctest entry. Otherwise a test is a program by itself.
# With UNITY the group's files are compiled several at a time.
function(millrace_test)
  if(NOT MILLRACE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "UNITY" "NAME;GROUP;TIMEOUT" "SRCS;DEPS;LABELS" ${ARGN})
  # The thread sanitizer's programs hold only the tests that it runs.
  if(ARG_GROUP AND MILLRACE_SANITIZE MATCHES "thread" AND NOT "threads" IN_LIST ARG_LABELS)
    return()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  set(program ${ARG_NAME})
  set(arguments "")
  if(ARG_GROUP)
    set(program ${ARG_GROUP})
    millrace_test_filter(filter "${ARG_SRCS}")
    set(arguments --gtest_filter=${filter})
  endif()
  if(NOT TARGET ${program})
    add_executable(${program})
    # OpenMP's flag, which some libraries ask for, must be that of the headers.
    target_link_libraries(${program} PRIVATE
      millrace_flags GTest::gmock GTest::gtest_main OpenMP::OpenMP_CXX)
    # Tests compute little; most of their cost is compiling them.
    target_compile_options(${program} PRIVATE
      $<$<COMPILE_LANGUAGE:CXX>:${MILLRACE_TEST_OPTIMIZATION}>)
    millrace_sanitize_less(${program})
    millrace_test_precompile(${program})
  endif()
  get_target_property(sources ${program} SOURCES)
  foreach(source ${ARG_SRCS})
    get_filename_component(source ${source} ABSOLUTE)
    if(NOT source IN_LIST sources)
      target_sources(${program} PRIVATE ${source})
      if(ARG_UNITY)
        millrace_test_unity(${program} ${source})
      endif()
    endif()
  endforeach()
  target_link_libraries(${program} PRIVATE ${ARG_DEPS})
  add_test(NAME ${ARG_NAME} COMMAND ${program} ${arguments}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # For scripts/changed_tests: which source files a test begins with.
  set(listed ${ARG_NAME})
  foreach(source ${ARG_SRCS})
    get_filename_component(source ${source} ABSOLUTE)
    file(RELATIVE_PATH source ${PROJECT_SOURCE_DIR} ${source})
    list(APPEND listed ${source})
  endforeach()
  if("job_process" IN_LIST ARG_DEPS)
    list(APPEND listed coordinator/cli/main.cc)  # The program itself is run.
  endif()
  list(JOIN listed " " listed)
  set_property(GLOBAL APPEND_STRING PROPERTY MILLRACE_TEST_SOURCES "${listed}\n")
  set_tests_properties(${ARG_NAME} PROPERTIES
    LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT}
    COST ${ARG_TIMEOUT})  # The longest first, so that none is alone at the end.
  if("unit" IN_LIST ARG_LABELS OR "sim" IN_LIST ARG_LABELS)
    add_dependencies(unit_and_sim_tests ${program})
  endif()
  if("threads" IN_LIST ARG_LABELS)
    add_dependencies(threads_tests ${program})
  endif()
endfunction()
