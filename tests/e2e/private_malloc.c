/* SPDX-License-Identifier: MIT */
/* private_malloc.c - a program that embeds libft.so still has the malloc of its C library; built by run_private_malloc. */
#include <dlfcn.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ft/ft.h>

static int from_libc(const char *name)
{
	void *at = dlsym(RTLD_DEFAULT, name);
	Dl_info info;

	if (!at || !dladdr(at, &info))
		return 0;
	printf("%s: %s\n", name, info.dli_fname);
	return strstr(info.dli_fname, "/libc.so") != NULL;
}

int main(void)
{
	static const char *const names[] = { "malloc", "free", "calloc", "realloc", "posix_memalign", "aligned_alloc" };
	size_t before;
	void *mem;

	ft_log_set(NULL, NULL, FT_LOG_ERROR); /* so that the library is really linked */
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (!from_libc(names[i]))
			return 1;
	before = mallinfo2().uordblks;
	mem = malloc(100000);
	if (!mem || mallinfo2().uordblks < before + 100000)
		return 1;
	free(mem);
	return 0;
}
