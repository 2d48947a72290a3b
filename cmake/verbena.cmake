# SPDX-License-Identifier: MIT
# The vocabulary of the build files.
#
#   verbena_layer(NAME base DEPENDS ... [LIBRARIES ...] [EXCLUDE ...]
#                 [COMPILE_OPTIONS ...] [PRECOMPILE <header> ...] [OWN_HEADERS] [APART]
#                 [TEST_DEPENDS ...] [TEST_LIBRARIES ...] [FUZZ_LIBRARIES ...] [LABELS unit]
#                 [TIMEOUT 600])
#     A folder of src/. Makes the static library verbena_<name> of its *.cc, and the test
#     <name>_test of its *_test.cc. DEPENDS names other folders and is held against
#     cmake/layers.txt. Left out of the library: main.cc, *_test.cc, *_fuzz.cc, and what EXCLUDE
#     names. Every other *_fuzz.cc is a fuzzer, as below, which may use what the test may.
#     COMPILE_OPTIONS: of the library only. PRECOMPILE: what it includes beside the usual; nothing
#     is precompiled for a library with OWN_HEADERS, nor are its files joined, which matters where
#     includes stand in pragmas. APART: they are not joined, since some are linked without what
#     others need.
#   verbena_fuzzer(SOURCE rings_fuzz.cc DEPENDS local [PARTS rings.cc] [LIBRARIES ...])
#     PARTS: of a layer that cannot be linked as a whole.
#     In the fuzz preset a fuzzer of its own name (scripts/fuzz). Where tests are built the test
#     rings_fuzz_replay, which gives it the inputs of rings_fuzz.corpus, without libFuzzer.
#   verbena_program(NAME verbena LAYER cli [MAIN main.cc])
#     An executable in bin/, installed. It and its layer see VERBENA_VERSION, and
#     VERBENA_LIBDIR_FROM_BINDIR: where the installed shared objects lie, seen from the folder of
#     the program (in the build tree: ../lib).
#   verbena_shared(NAME ibverbs SONAME libibverbs.so.1 VERSION_SCRIPT libibverbs.map LAYERS verbs
#                  [SOURCES ...] [LIBRARIES ...] [LINK_OPTIONS ...] [DESTINATION folder])
#     A shared object in lib/ that exports exactly its version script (scripts/check compares),
#     installed; where nothing of the system's is taken over unless DESTINATION says otherwise.
#   verbena_test(NAME fabric_test SOURCES ... DEPENDS local LABELS sim [TIMEOUT 120] [ARGS ...])
#     A gtest executable outside src/. Not in a thread sanitizer's build with LABELS sim.
#   verbena_script_test(NAME perftest COMMAND script args... LABELS conformance [TIMEOUT 600]
#                       [MODES [IN_OTHERS --brief ...]] [WIRE [IN_WIRE --brief ...]] [ONLY_OTHERS])
#     Any other test. It prints `SKIP what: why` for each thing it does not do and `FAIL what: why`
#     for each that fails, and closes with `N passed, N failed` (and `, N skipped`). Exit status 77:
#     all of it skipped. With MODES it runs with every carrier: as users get it, and, as
#     perftest_ring and perftest_never, with the ring only and without adopted memory; IN_OTHERS:
#     arguments for those two. With WIRE also as perftest_wire, by RoCEv2 on the loopback interface.
#     ONLY_OTHERS: not as users get it, which another test is.
#   verbena_helper(NAME child SOURCES ... DEPENDS ...)
#     An executable in bin/test/ that tests start; not installed.

file(STRINGS "${CMAKE_SOURCE_DIR}/cmake/layers.txt" verbena_layer_lines REGEX "^[0-9]")
set_property(DIRECTORY APPEND PROPERTY
  CMAKE_CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/cmake/layers.txt")
set(verbena_height 0)
foreach(line IN LISTS verbena_layer_lines)
  math(EXPR verbena_height "${verbena_height} + 1")
  string(REGEX MATCHALL "[^ \t]+" words "${line}")
  list(POP_FRONT words)
  foreach(folder IN LISTS words)
    set(verbena_height_of_${folder} ${verbena_height})
  endforeach()
endforeach()

# What users run is optimised across files and layers: a message takes one seventh less time. The
# archives hold ordinary code as well, which is what programs and tests link.
if(CMAKE_BUILD_TYPE STREQUAL "Release" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  set(verbena_whole_compile -flto=auto -ffat-lto-objects)
  set(verbena_whole_link -flto=auto)
  add_link_options("$<$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>:-fno-lto>")
endif()

# So many files are one to the compiler where how they are optimised does not matter: their headers
# cost more than they do. Not in Debug, where somebody changes a file at a time.
add_library(verbena_together INTERFACE)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  set(verbena_together UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  # What is in the unnamed namespace of one file shadows nothing of another's.
  target_compile_options(verbena_together INTERFACE -Wno-shadow)
endif()

# Nobody runs Release's tests but to see whether they pass: their variables' symbols would be a
# third of the time that compiling them takes.
add_library(verbena_test_flags INTERFACE)
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_options(verbena_test_flags INTERFACE -g1)
endif()

# Precompiled once, reused by every layer that has no options of its own: these headers are half
# of what a small file costs.
set(verbena_usual_headers <algorithm> <array> <atomic> <cstring> <map> <memory> <mutex> <optional>
  <set> <span> <string> <string_view> <utility> <vector>)
if(VERBENA_PCH)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/usual_pch.cc" CONTENT "// Carries the headers.\n")
  add_library(verbena_usual_pch OBJECT EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/usual_pch.cc")
  target_link_libraries(verbena_usual_pch PRIVATE verbena_flags)
  target_compile_options(verbena_usual_pch PRIVATE ${verbena_whole_compile})
  target_precompile_headers(verbena_usual_pch PRIVATE ${verbena_usual_headers})
endif()

function(verbena_precompile target options extra)
  get_target_property(sources ${target} SOURCES)
  list(LENGTH sources count)
  if(NOT options AND NOT extra)
    target_precompile_headers(${target} REUSE_FROM verbena_usual_pch)
  elseif(count GREATER 4)
    target_precompile_headers(${target} PRIVATE ${verbena_usual_headers} ${extra})
  endif()
endfunction()

# Stops the build when `name` may not use `dependency`.
function(verbena_check_layer name dependency)
  foreach(folder IN ITEMS ${name} ${dependency})
    if(NOT verbena_height_of_${folder})
      message(FATAL_ERROR "src/${folder} is not in cmake/layers.txt")
    endif()
  endforeach()
  if(NOT verbena_height_of_${dependency} LESS verbena_height_of_${name})
    message(FATAL_ERROR "cmake/layers.txt: ${name} may not use ${dependency}, it is not below it")
  endif()
endfunction()

if(VERBENA_TESTS OR VERBENA_FUZZ)
  find_package(GTest REQUIRED)  # fuzzers share the worlds of tests
endif()
if(VERBENA_TESTS)
  # Precompiled once, reused by every test: gtest costs 0.64 s a file otherwise, 0.27 s so.
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/gtest_pch.cc" CONTENT "// Carries the header.\n")
  add_executable(verbena_gtest_pch EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/gtest_pch.cc")
  set_target_properties(verbena_gtest_pch PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/CMakeFiles")
  target_link_libraries(verbena_gtest_pch PRIVATE
    verbena_flags verbena_test_flags GTest::gmock_main)
  if(VERBENA_PCH)
    target_precompile_headers(verbena_gtest_pch PRIVATE <gmock/gmock.h> <gtest/gtest.h>)
  endif()
endif()

# How a sanitized test talks: every report ends the process, so that no finding is printed and
# passed over.
set(verbena_test_environment
  "VERBENA_BUILD_DIR=${CMAKE_BINARY_DIR}" "VERBENA_SOURCE_DIR=${CMAKE_SOURCE_DIR}"
  "ASAN_OPTIONS=detect_leaks=1:detect_stack_use_after_return=1:strict_string_checks=1"
  "UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1"
  "TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1")
string(APPEND verbena_test_environment ":suppressions=${CMAKE_SOURCE_DIR}/scripts/tsan.supp")

function(verbena_set_test_properties name labels timeout)
  if(NOT labels)
    set(labels unit)
  endif()
  if(NOT timeout)
    set(timeout 600)
  endif()
  set_tests_properties(${name} PROPERTIES
    LABELS "${labels}" TIMEOUT ${timeout} SKIP_RETURN_CODE 77
    ENVIRONMENT "${verbena_test_environment}")
  # Processes that wait for each other, and programs that measure, want the machine to themselves.
  if(labels MATCHES "ring|conformance|chaos")
    set_tests_properties(${name} PROPERTIES RUN_SERIAL ON)
  endif()
endfunction()

function(verbena_test)
  cmake_parse_arguments(ARG "" "NAME;TIMEOUT" "SOURCES;DEPENDS;LIBRARIES;LABELS;ARGS" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin/test" ${verbena_together})
  list(TRANSFORM ARG_DEPENDS PREPEND verbena_)
  target_link_libraries(${ARG_NAME} PRIVATE
    verbena_flags verbena_test_flags verbena_together ${ARG_DEPENDS} ${ARG_LIBRARIES}
    GTest::gmock_main)
  if(VERBENA_PCH)
    target_precompile_headers(${ARG_NAME} REUSE_FROM verbena_gtest_pch)
  endif()
  # One thread has no races: neither on a virtual clock nor where inputs are replayed, unless a
  # shared object with its NIC takes part.
  set(replays OFF)
  if(ARG_NAME MATCHES "_fuzz_replay$" AND NOT ARG_LIBRARIES MATCHES "_so(;|$)")
    set(replays ON)
  endif()
  if(VERBENA_SANITIZE STREQUAL "thread" AND (ARG_LABELS STREQUAL "sim" OR replays))
    set_target_properties(${ARG_NAME} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGS})
  verbena_set_test_properties(${ARG_NAME} "${ARG_LABELS}" "${ARG_TIMEOUT}")
endfunction()

function(verbena_script_test)
  cmake_parse_arguments(
    ARG "MODES;WIRE;ONLY_OTHERS" "NAME;TIMEOUT" "COMMAND;LABELS;IN_OTHERS;IN_WIRE" ${ARGN})
  if(NOT ARG_ONLY_OTHERS)
    add_test(NAME ${ARG_NAME} COMMAND ${ARG_COMMAND} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    verbena_set_test_properties(${ARG_NAME} "${ARG_LABELS}" "${ARG_TIMEOUT}")
  endif()
  set(others "")
  if(ARG_MODES)
    if(NOT ARG_ONLY_OTHERS)
      set_property(TEST ${ARG_NAME} APPEND PROPERTY ENVIRONMENT VERBENA_ADOPT=auto)
    endif()
    list(APPEND others VERBENA_PATH=ring VERBENA_ADOPT=never)
  endif()
  if(ARG_WIRE)
    list(APPEND others VERBENA_PATH=wire)
  endif()
  foreach(variable IN LISTS others)
    string(REGEX REPLACE ".*=" "" mode "${variable}")
    set(arguments ${ARG_IN_OTHERS})
    if(mode STREQUAL "wire")
      set(arguments ${ARG_IN_WIRE})
    endif()
    add_test(NAME ${ARG_NAME}_${mode} COMMAND ${ARG_COMMAND} ${arguments}
      WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
    verbena_set_test_properties(${ARG_NAME}_${mode} "${ARG_LABELS}" "${ARG_TIMEOUT}")
    set_property(TEST ${ARG_NAME}_${mode} APPEND PROPERTY ENVIRONMENT ${variable})
  endforeach()
endfunction()

function(verbena_helper)
  cmake_parse_arguments(ARG "" "NAME" "SOURCES;DEPENDS;LIBRARIES" ${ARGN})
  add_executable(${ARG_NAME} ${ARG_SOURCES})
  set_target_properties(${ARG_NAME} PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin/test")
  list(TRANSFORM ARG_DEPENDS PREPEND verbena_)
  target_link_libraries(${ARG_NAME} PRIVATE
    verbena_flags verbena_test_flags ${ARG_DEPENDS} ${ARG_LIBRARIES})
endfunction()

function(verbena_layer)
  set(lists DEPENDS LIBRARIES EXCLUDE COMPILE_OPTIONS PRECOMPILE
    TEST_DEPENDS TEST_LIBRARIES FUZZ_LIBRARIES LABELS)
  cmake_parse_arguments(ARG "OWN_HEADERS;APART" "NAME;TIMEOUT" "${lists}" ${ARGN})
  foreach(dependency IN LISTS ARG_DEPENDS ARG_TEST_DEPENDS)
    verbena_check_layer(${ARG_NAME} ${dependency})
  endforeach()

  file(GLOB_RECURSE all CONFIGURE_DEPENDS RELATIVE "${CMAKE_CURRENT_SOURCE_DIR}" *.cc)
  set(sources ${all})
  list(FILTER sources EXCLUDE REGEX "(^|/)main\\.cc$|_test\\.cc$|_fuzz\\.cc$")
  if(ARG_EXCLUDE)
    list(REMOVE_ITEM sources ${ARG_EXCLUDE})
  endif()
  set(tests ${all})
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  set(fuzzers ${all})
  list(FILTER fuzzers INCLUDE REGEX "_fuzz\\.cc$")
  if(ARG_EXCLUDE)
    list(REMOVE_ITEM fuzzers ${ARG_EXCLUDE})
  endif()

  set(target verbena_${ARG_NAME})
  list(TRANSFORM ARG_DEPENDS PREPEND verbena_)
  if(sources)
    add_library(${target} STATIC ${sources})
    target_link_libraries(${target} PUBLIC verbena_flags ${ARG_DEPENDS} ${ARG_LIBRARIES})
    target_compile_options(${target} PRIVATE ${verbena_whole_compile} ${ARG_COMPILE_OPTIONS})
    if(ARG_OWN_HEADERS OR ARG_APART)
      set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
    endif()
    if(VERBENA_PCH AND NOT ARG_OWN_HEADERS)
      verbena_precompile(${target} "${ARG_COMPILE_OPTIONS}" "${ARG_PRECOMPILE}")
    endif()
  else()
    add_library(${target} INTERFACE)
    target_link_libraries(${target} INTERFACE verbena_flags ${ARG_DEPENDS} ${ARG_LIBRARIES})
  endif()

  if(VERBENA_TESTS AND tests)
    verbena_test(NAME ${ARG_NAME}_test SOURCES ${tests} DEPENDS ${ARG_NAME} ${ARG_TEST_DEPENDS}
      LIBRARIES ${ARG_TEST_LIBRARIES} LABELS ${ARG_LABELS} TIMEOUT ${ARG_TIMEOUT})
  endif()
  foreach(source IN LISTS fuzzers)
    verbena_fuzzer(SOURCE ${source} DEPENDS ${ARG_NAME} ${ARG_TEST_DEPENDS}
      LIBRARIES ${ARG_FUZZ_LIBRARIES})
  endforeach()
endfunction()

function(verbena_fuzzer)
  cmake_parse_arguments(ARG "" "SOURCE" "DEPENDS;PARTS;LIBRARIES" ${ARGN})
  get_filename_component(name "${ARG_SOURCE}" NAME_WE)
  set(corpus "${CMAKE_CURRENT_SOURCE_DIR}/${name}.corpus")
  if(VERBENA_TESTS)
    verbena_test(NAME ${name}_replay DEPENDS ${ARG_DEPENDS} LIBRARIES ${ARG_LIBRARIES} TIMEOUT 300
      SOURCES ${ARG_SOURCE} ${ARG_PARTS} "${CMAKE_SOURCE_DIR}/tests/fuzz/replay.cc")
    target_compile_definitions(${name}_replay PRIVATE VERBENA_CORPUS="${corpus}")
  endif()
  if(VERBENA_FUZZ)
    list(TRANSFORM ARG_DEPENDS PREPEND verbena_)
    add_executable(${name} ${ARG_SOURCE} ${ARG_PARTS})
    set_target_properties(${name} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin/fuzz")
    target_link_libraries(${name} PRIVATE
      verbena_flags ${ARG_DEPENDS} ${ARG_LIBRARIES} GTest::gtest)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    # A few seconds show that the fuzzer still runs; scripts/test --long gives it minutes.
    add_test(NAME ${name} COMMAND "${CMAKE_SOURCE_DIR}/scripts/fuzz" --built ${name})
    verbena_set_test_properties(${name} fuzz 600)
  endif()
endfunction()

function(verbena_program)
  cmake_parse_arguments(ARG "" "NAME;LAYER;MAIN" "LIBRARIES" ${ARGN})
  if(NOT ARG_MAIN)
    set(ARG_MAIN main.cc)
  endif()
  add_executable(${ARG_NAME} ${ARG_MAIN})
  target_link_libraries(${ARG_NAME} PRIVATE verbena_${ARG_LAYER} ${ARG_LIBRARIES})
  get_target_property(type verbena_${ARG_LAYER} TYPE)
  set(definitions
    VERBENA_VERSION="${PROJECT_VERSION}" VERBENA_LIBDIR_FROM_BINDIR="${VERBENA_LIBDIR_FROM_BINDIR}")
  target_compile_definitions(${ARG_NAME} PRIVATE ${definitions})
  if(type STREQUAL "STATIC_LIBRARY")
    target_compile_definitions(verbena_${ARG_LAYER} PRIVATE ${definitions})
  endif()
  install(TARGETS ${ARG_NAME} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endfunction()

# Where the shared objects go when installed: a folder of our own, so that nothing is taken over
# system-wide. The program finds it from its own place: ../lib in the build tree, and this when
# installed.
set(VERBENA_INSTALL_LIBDIR "${CMAKE_INSTALL_LIBDIR}/verbena")
file(RELATIVE_PATH VERBENA_LIBDIR_FROM_BINDIR
  "${CMAKE_INSTALL_FULL_BINDIR}" "${CMAKE_INSTALL_FULL_LIBDIR}/verbena")

# Shared object and version script of each, for scripts/check.
file(WRITE "${CMAKE_BINARY_DIR}/exports.txt" "")

function(verbena_shared)
  cmake_parse_arguments(ARG "" "NAME;SONAME;VERSION_SCRIPT;DESTINATION"
    "SOURCES;LAYERS;LIBRARIES;LINK_OPTIONS" ${ARGN})
  get_filename_component(script "${ARG_VERSION_SCRIPT}" ABSOLUTE)
  if(NOT ARG_SOURCES)
    set(ARG_SOURCES "${CMAKE_CURRENT_BINARY_DIR}/${ARG_NAME}.cc")
    file(CONFIGURE OUTPUT "${ARG_SOURCES}" CONTENT "// All content comes from the layers.\n")
  endif()
  set(target ${ARG_NAME}_so)
  add_library(${target} SHARED ${ARG_SOURCES})
  if(NOT ARG_SONAME MATCHES "^lib(.+)\\.so(\\.([0-9]+))?$")
    message(FATAL_ERROR "SONAME ${ARG_SONAME} is not lib*.so or lib*.so.N")
  endif()
  # Programs look for libX.so.1, some (NCCL) dlopen libX.so: both names are there.
  set_target_properties(${target} PROPERTIES
    OUTPUT_NAME "${CMAKE_MATCH_1}" LINK_DEPENDS "${script}")
  if(CMAKE_MATCH_3)
    set_target_properties(${target} PROPERTIES SOVERSION "${CMAKE_MATCH_3}")
  endif()

  # The exported functions live in the archives of the front doors, which nothing refers to: take
  # those whole.
  foreach(layer IN LISTS ARG_LAYERS)
    target_link_libraries(${target} PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,verbena_${layer}>")
  endforeach()
  target_link_libraries(${target} PRIVATE verbena_flags ${ARG_LIBRARIES})
  # We are loaded into other people's processes: never unloaded (threads and mappings of ours live
  # on), nothing bound late (a lazy binding inside a signal handler or after seccomp can fail), and
  # no C++ runtime but our own.
  target_link_options(${target} PRIVATE
    "-Wl,--version-script=${script}" -Wl,-z,nodelete -Wl,-z,now -Wl,-z,relro -Wl,--as-needed
    ${ARG_LINK_OPTIONS} ${verbena_whole_link})
  if(NOT VERBENA_SANITIZE)
    target_link_options(${target} PRIVATE -static-libstdc++ -static-libgcc -Wl,--no-undefined)
  endif()
  file(APPEND "${CMAKE_BINARY_DIR}/exports.txt" "lib/${ARG_SONAME} ${script}\n")
  if(NOT ARG_DESTINATION)
    set(ARG_DESTINATION "${VERBENA_INSTALL_LIBDIR}")
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION "${ARG_DESTINATION}")
endfunction()
