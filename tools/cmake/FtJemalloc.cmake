# SPDX-License-Identifier: MIT
# A private copy of jemalloc for libft's page pools.  Linking libjemalloc.so would replace malloc in the program that
# embeds the library; so the static archive's objects are taken, without its C++ part, and their public
# names get the prefix ftje_ (docs/decisions/004-private-jemalloc.md).  One internal switch is made weak, so that pool.c
# can set it: 5.3.0 does not read the option of that name.  Target: ft_jemalloc.
find_library(JEMALLOC_ARCHIVE NAMES libjemalloc_pic.a HINTS ${JEMALLOC_LIBDIR} REQUIRED)
set(FTJE_NAMES aligned_alloc calloc dallocx free mallctl mallctlbymib mallctlnametomib malloc malloc_conf
  malloc_conf_2_conf_harder malloc_message malloc_stats_print malloc_usable_size mallocx memalign nallocx posix_memalign
  rallocx realloc sallocx sdallocx valloc xallocx __libc_calloc __libc_free __libc_malloc __libc_memalign
  __libc_realloc __libc_valloc __posix_memalign __free_hook __malloc_hook __realloc_hook __memalign_hook)
set(FTJE_MAP ${CMAKE_BINARY_DIR}/ftje.map)
file(WRITE ${FTJE_MAP} "")
foreach(n ${FTJE_NAMES})
  file(APPEND ${FTJE_MAP} "${n} ftje_${n}\n")
endforeach()
set(FTJE_OUT ${CMAKE_BINARY_DIR}/libftje.a)
add_custom_command(OUTPUT ${FTJE_OUT}
  COMMAND ${CMAKE_COMMAND} -E copy ${JEMALLOC_ARCHIVE} ${FTJE_OUT}.tmp
  COMMAND sh -c "for o in $(${CMAKE_AR} t ${FTJE_OUT}.tmp | grep cpp); do ${CMAKE_AR} d ${FTJE_OUT}.tmp $o; done"
  COMMAND ${CMAKE_OBJCOPY} --redefine-syms=${FTJE_MAP} --weaken-symbol=je_opt_cache_oblivious ${FTJE_OUT}.tmp ${FTJE_OUT}
  COMMAND ${CMAKE_COMMAND} -E rm ${FTJE_OUT}.tmp
  DEPENDS ${JEMALLOC_ARCHIVE} ${FTJE_MAP} VERBATIM)
add_custom_target(ftje_archive DEPENDS ${FTJE_OUT})
add_library(ft_jemalloc STATIC IMPORTED GLOBAL)
set_target_properties(ft_jemalloc PROPERTIES IMPORTED_LOCATION ${FTJE_OUT})
target_link_libraries(ft_jemalloc INTERFACE m Threads::Threads ${CMAKE_DL_LIBS})
add_dependencies(ft_jemalloc ftje_archive)
