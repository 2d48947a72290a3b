# SPDX-License-Identifier: MIT
# The flags that every target shares, as the interface target `verbena_flags`.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib/static")

# Release keeps its symbols (a NIC inside other people's processes must be debuggable there) and
# VERBENA_ASSERT, which does not look at NDEBUG. The sanitizer builds are optimised a little:
# without, their tests take minutes. Their reports name functions and lines: the rest of the symbols
# is a quarter of the time that compiling takes.
set(CMAKE_CXX_FLAGS_DEBUG "-O0 -g -D_GLIBCXX_ASSERTIONS")
# Between two system calls code has to come from the second cache: no room between its pieces.
# A vector of what was just stored word by word is read only when all stores before it are in the
# cache, and one of these may be the last message for a peer: no vectors made of fields.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g -DNDEBUG -fno-plt -fno-tree-slp-vectorize")
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  string(APPEND CMAKE_CXX_FLAGS_RELEASE " -falign-jumps=1")
endif()
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1 -fno-omit-frame-pointer -D_GLIBCXX_ASSERTIONS")

find_program(VERBENA_CCACHE ccache)
if(VERBENA_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # Without this sloppiness ccache never takes a file that uses a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER
    "${CMAKE_COMMAND};-E;env;CCACHE_SLOPPINESS=pch_defines,time_macros;${VERBENA_CCACHE}")
endif()

set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

add_library(verbena_flags INTERFACE)
target_include_directories(verbena_flags INTERFACE
  "${CMAKE_SOURCE_DIR}/src" "${CMAKE_SOURCE_DIR}/include")
target_link_libraries(verbena_flags INTERFACE Threads::Threads)
target_compile_options(verbena_flags INTERFACE
  -Wall -Wextra -Wconversion -Wshadow -Wswitch-enum -Wold-style-cast -fno-rtti
  "-fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=")  # __FILE__ names no folder of the build machine
if(VERBENA_WERROR)
  target_compile_options(verbena_flags INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  # gcc's -Wconversion leaves the sign alone in C++; both compilers shall agree on what is a
  # warning.
  target_compile_options(verbena_flags INTERFACE -Wno-sign-conversion)
  if(VERBENA_PCH)
    target_compile_options(verbena_flags INTERFACE "SHELL:-Xclang -fno-pch-timestamp")
  endif()
else()
  # A unique symbol would be shared with other libraries of the program that loads us.
  target_compile_options(verbena_flags INTERFACE -fno-gnu-unique)
endif()

# The sanitizers' builds compile some files of a target together, which costs half: what tests
# instantiate of the standard library and gtest is most of it. Release compiles each by itself.
if(CMAKE_UNITY_BUILD)
  target_compile_options(verbena_flags INTERFACE -Wno-shadow)  # of a name of another file
endif()

if(VERBENA_SANITIZE)
  set(sanitize "-fsanitize=${VERBENA_SANITIZE}")
  if(VERBENA_FUZZ)
    string(APPEND sanitize " -fsanitize=fuzzer-no-link")
  endif()
  target_compile_options(verbena_flags INTERFACE "SHELL:${sanitize} -fno-sanitize-recover=all")
  if(VERBENA_SANITIZE MATCHES "undefined")
    target_compile_options(verbena_flags INTERFACE -fno-sanitize=vptr)  # needs RTTI
  endif()
  target_link_options(verbena_flags INTERFACE "SHELL:${sanitize}")
  target_compile_definitions(verbena_flags INTERFACE VERBENA_SANITIZED=1)
endif()
if(VERBENA_FUZZ AND NOT CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
  message(FATAL_ERROR "VERBENA_FUZZ needs clang: use the preset fuzz")
endif()
