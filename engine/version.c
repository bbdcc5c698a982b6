/* SPDX-License-Identifier: MIT */
/* version.c - the version of the library, from CMakeLists.txt. */
#include <ft/ft.h>

const char *ft_version(void)
{
	return FT_VERSION;
}
