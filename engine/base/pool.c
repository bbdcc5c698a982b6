/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include "err.h"
#include "pool.h"
struct pool { struct pool_options o; uint64_t used; };
int pool_create(struct pool **out, const struct pool_options *opt, struct ft_error *err){ (void)err; *out = calloc(1,sizeof(**out)); (*out)->o=*opt; return 0; }
void *pool_alloc(struct pool *p, size_t len, size_t align){ (void)align; if (p->used+len>p->o.cap_bytes) return NULL; p->used+=len; void *m= mmap(NULL,len,PROT_READ|PROT_WRITE,MAP_PRIVATE|MAP_ANONYMOUS,-1,0); return m==MAP_FAILED?NULL:m; }
void pool_free(struct pool *p, void *mem, size_t len){ if(mem){p->used-=len; munmap(mem,len);} }
void pool_stats(struct pool *p, struct pool_stats *out){ out->cap_bytes=p->o.cap_bytes; out->used_bytes=p->used; }
void pool_destroy(struct pool *p){ free(p); }
