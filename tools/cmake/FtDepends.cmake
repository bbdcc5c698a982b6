# SPDX-License-Identifier: MIT
# What ft needs from the system; README lists the Debian packages.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(VERBS REQUIRED IMPORTED_TARGET libibverbs)
pkg_check_modules(RDMACM REQUIRED IMPORTED_TARGET librdmacm)
pkg_check_modules(URCU REQUIRED IMPORTED_TARGET liburcu-bp)
pkg_check_modules(URCU_CDS REQUIRED IMPORTED_TARGET liburcu-cds)
pkg_check_modules(JEMALLOC REQUIRED jemalloc)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(INIH REQUIRED IMPORTED_TARGET inih)
pkg_check_modules(CRITERION REQUIRED IMPORTED_TARGET criterion)
include(FtJemalloc)
