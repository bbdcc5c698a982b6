# SPDX-License-Identifier: MIT
# Compiler flags of the whole project, on the interface target ft_flags.
add_library(ft_flags INTERFACE)
target_compile_definitions(ft_flags INTERFACE _GNU_SOURCE FT_VERSION="${PROJECT_VERSION}")
target_compile_options(ft_flags INTERFACE
  -Wall -Wextra -Wshadow -Wswitch-enum -Wmissing-prototypes -Wstrict-prototypes -Wconversion -Wno-sign-conversion
  -Wvla -Wundef -Wpointer-arith -fno-common -fno-strict-aliasing
  $<$<BOOL:${WERROR}>:-Werror>
  # asserts stay on in release: they guard our own mistakes, and none is in an inner loop
  $<$<CONFIG:Release>:-UNDEBUG>)
if(FAULT_POINTS)
  target_compile_definitions(ft_flags INTERFACE FT_FAULT_POINTS)
endif()

set(FT_SANITIZE_FLAGS "")
if(SANITIZE STREQUAL "address")
  set(FT_SANITIZE_FLAGS -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_definitions(ft_flags INTERFACE FT_ASAN) # the compilers' own names for it differ
elseif(SANITIZE STREQUAL "thread")
  set(FT_SANITIZE_FLAGS -fsanitize=thread -fno-omit-frame-pointer)
  target_compile_definitions(ft_flags INTERFACE FT_TSAN)
elseif(SANITIZE)
  message(FATAL_ERROR "SANITIZE is '${SANITIZE}'; it may be address, thread or empty")
endif()
if(FUZZ) # coverage of the library itself, or the fuzzer is blind
  list(APPEND FT_SANITIZE_FLAGS -fsanitize=fuzzer-no-link)
endif()
target_compile_options(ft_flags INTERFACE ${FT_SANITIZE_FLAGS})
target_link_options(ft_flags INTERFACE ${FT_SANITIZE_FLAGS})

# ft_object(NAME sources... DEPENDS targets...): one folder as an object library with its own include path.
function(ft_object name)
  cmake_parse_arguments(A "" "" "DEPENDS" ${ARGN})
  add_library(${name} OBJECT ${A_UNPARSED_ARGUMENTS})
  target_include_directories(${name} PUBLIC ${CMAKE_CURRENT_SOURCE_DIR})
  # objects are collected by engine/; only include paths and flags travel along DEPENDS
  foreach(d ft_flags ${A_DEPENDS})
    target_include_directories(${name} PUBLIC $<TARGET_PROPERTY:${d},INTERFACE_INCLUDE_DIRECTORIES>)
    target_compile_options(${name} PRIVATE $<TARGET_PROPERTY:${d},INTERFACE_COMPILE_OPTIONS>)
    target_compile_definitions(${name} PRIVATE $<TARGET_PROPERTY:${d},INTERFACE_COMPILE_DEFINITIONS>)
  endforeach()
endfunction()
