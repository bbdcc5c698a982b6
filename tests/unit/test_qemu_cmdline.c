/* SPDX-License-Identifier: MIT */
/* test_qemu_cmdline.c - the user's QEMU command line: what is refused with which reason, and what the rest becomes. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmdline.h"
#include "opts.h"

#define WORDS_MAX 64

static const char machines[] = "Supported machines are:\n"
			       "microvm              microvm (i386)\n"
			       "pc                   Standard PC (i440FX + PIIX, 1996) (alias of pc-i440fx-7.2)\n"
			       "pc-i440fx-7.2        Standard PC (i440FX + PIIX, 1996) (default)\n"
			       "q35                  Standard PC (Q35 + ICH9, 2009) (alias of pc-q35-7.2)\n"
			       "pc-q35-7.2           Standard PC (Q35 + ICH9, 2009)\n";

static struct cmdline out;
static struct ft_error err;
static struct cmdline_request req;

static void setup(void)
{
	req = (struct cmdline_request){ .machines = machines,
					.run_dir = "/run/ft/vm",
					.shim = "/lib/ft/ft-shim.so",
					.has_plugins = true,
					.ram_fd = 7 };
	err = (struct ft_error){ 0 };
}

static void teardown(void)
{
	cmdline_free(&out);
}

TestSuite(cmdline, .init = setup, .fini = teardown, .timeout = 60);

/* @words are divided by blanks. */
static int rewrite(const char *words)
{
	static char copy[4096];
	char *argv[WORDS_MAX], *save = NULL;
	int n = 0;

	cmdline_free(&out);
	snprintf(copy, sizeof(copy), "%s", words);
	for (argv[n] = strtok_r(copy, " ", &save); argv[n]; argv[n] = strtok_r(NULL, " ", &save))
		cr_assert_lt(++n, WORDS_MAX);
	req.argv = argv;
	return cmdline_rewrite(&out, &req, &err);
}

static const char *rewritten(const char *words)
{
	static char *line;

	cr_assert_eq(rewrite(words), 0, "%s: %s", words, err.msg);
	free(line);
	line = cmdline_shell(out.argv.v);
	return line;
}

static bool has_words(const char *line, const char *words)
{
	const char *at = strstr(line, words);

	return at && (at == line || at[-1] == ' ') && strchr(" ", at[strlen(words)]);
}

/* ---- refused ------------------------------------------------------------------------------------ */

struct refusal {
	const char *words, *says;
};

static const struct refusal refusals[] = {
	{ "q -daemonize", "-daemonize: ftqemu needs its child" },
	{ "q --daemonize", "-daemonize:" },
	{ "q -incoming tcp:0:1", "-incoming tcp:0:1:" },
	{ "q -S", "-S: ftqemu starts the guest itself" },
	{ "q -s", "-s: a debugger" },
	{ "q -gdb tcp::1", "-gdb tcp::1: a debugger" },
	{ "q -preconfig", "-preconfig:" },
	{ "q -readconfig f", "-readconfig f: options in a file" },
	{ "q -loadvm s", "-loadvm s:" },
	{ "q -set drive.d.readonly=off", "-set" },
	{ "q -mem-path /dev/shm", "-mem-path /dev/shm: ftqemu supplies" },
	{ "q -chroot /x", "-chroot /x:" },
	{ "q -snapshot", "-snapshot: the temporary disks" },
	{ "q -m 1G,slots=2,maxmem=4G", "plugged in later" },
	{ "q -m size=1G,maxmem=4G", "plugged in later" },
	{ "q -m lots", "-m lots: not a size" },
	{ "q -m 0", "between 8K and 64T" },
	{ "q -m 1G2", "not a size" },
	{ "q -numa node,memdev=m0 -numa node,memdev=m1", "several NUMA nodes" },
	{ "q -numa node,mem=1G", "several NUMA nodes" },
	{ "q -object memory-backend-ram,id=m,size=1G", "drop the memory backend" },
	{ "q -object memory-backend-file,id=m,size=1G,mem-path=/x,share=on", "drop the memory backend" },
	{ "q -object {\"qom-type\":\"memory-backend-ram\",\"id\":\"m\",\"size\":1}", "drop the memory backend" },
	{ "q -object {broken", "not a JSON object" },
	{ "q -object id=m", "without a type" },
	{ "q -object sev-guest,id=s", "encrypted" },
	{ "q -object filter-mirror,id=f", "network filters" },
	{ "q -M pc,memory-backend=m", "drop memory-backend=" },
	{ "q -M none", "no machine" },
	{ "q -machine pc,nvdimm=on", "NVDIMM" },
	{ "q -machine q35,confidential-guest-support=s", "encrypted" },
	{ "q -machine pc,accel=xen", "accelerator xen" },
	{ "q -machine pc,accel=kvm:hax", "accelerator hax" },
	{ "q -accel hvf", "accelerator hvf" },
	{ "q -device vfio-pci,host=0:1", "-device vfio-pci,host=0:1: a device of the host" },
	{ "q -device vhost-user-blk-pci,chardev=c", "another process or the kernel writes" },
	{ "q -device {\"driver\":\"vfio-pci\",\"host\":\"0:1\"}", "a device of the host" },
	{ "q -device virtio-balloon-pci", "pages that the balloon gives back" },
	{ "q -device virtio-balloon-pci,free-page-reporting=on", "free page reporting" },
	{ "q -device virtio-mem-pci,memdev=m", "plugged in later" },
	{ "q -device pc-dimm,memdev=m", "beside the machine's own" },
	{ "q -device nvdimm,memdev=m", "NVDIMM" },
	{ "q -device ivshmem-plain,memdev=m", "shared with others" },
	{ "q -device usb-host,hostbus=1", "cannot move" },
	{ "q -device id=x", "without a driver" },
	{ "q -fsdev local,id=f,path=/,security_model=none", "files of the host" },
	{ "q -tpmdev passthrough,id=t", "TPM" },
	{ "q -drive file=d.img,format=vmdk", "-drive file=d.img,format=vmdk: what the guest writes to this disk" },
	{ "q -drive file=nbd:unix:s", "it is no file of this host" },
	{ "q -drive file=nbd://h/x,format=raw", "it is no file of this host" },
	{ "q -drive file=fat:rw:dir", "it is no file of this host" },
	{ "q -drive file.driver=nbd,file.host=h", "raw and qcow2 images" },
	{ "q -drive file.driver=host_device,file.filename=d", "raw and qcow2 images" },
	{ "q -drive file=json:{},format=raw", "write it as -blockdev" },
	{ "q -drive file=,format=raw", "it names no file" },
	{ "q -drive format=raw", "raw and qcow2 images" },
	{ "q -drive file=/dev/sda,format=raw", "a device of the host is not replicated" },
	{ "q -drive file=d.img,snapshot=on", "drop snapshot=on" },
	{ "q -drive file=d.img,readonly=on,snapshot=on", "drop snapshot=on" },
	{ "q -drive if=floppy,file=d.img", "use if=virtio" },
	{ "q -drive if=pflash,file=vars.fd", "this flash is not held" },
	{ "q -drive file=d.img -drive file=e.img -drive file=d.img,if=virtio",
	  "another disk of this machine is in the same file" },
	{ "q -hda d.img -blockdev driver=file,node-name=n,filename=d.img",
	  "another disk of this machine is in the same file" },
	{ "q -drive file=file:d.img -hda d.img", "another disk of this machine is in the same file" },
	{ "q -blockdev driver=nbd,node-name=n,server.type=unix,server.path=s", "add read-only=on" },
	{ "q -blockdev driver=host_device,node-name=n,filename=/dev/sda", "add read-only=on" },
	{ "q -blockdev driver=file,node-name=n,filename=/dev/sda", "a device of the host is not replicated" },
	{ "q -blockdev driver=vmdk,node-name=n,file=f", "add read-only=on" },
	{ "q -blockdev driver=raw,node-name=n,file.driver=nbd,file.filename=x", "add read-only=on" },
	{ "q -blockdev {\"driver\":\"raw\",\"node-name\":\"n\",\"file\":{\"driver\":\"nbd\"}}",
	  "a -blockdev of its own" },
	{ "q -blockdev node-name=n", "add read-only=on" },
	{ "q -hda /dev/sda", "a device of the host is not replicated" },
	{ "q -hda ssh://h/d", "it is no file of this host" },
	{ "q -fda d.img", "use a hard disk" },
	{ "q -pflash f", "use -drive if=pflash,readonly=on" },
	{ "q d.img", "d.img: a disk given without an option" },
	{ "q -netdev user,id=n", "-netdev user,id=n: the connections of a user network end in QEMU" },
	{ "q -nic user", "use tap, stream or dgram" },
	{ "q -nic model=e1000", "use tap, stream or dgram" },
	{ "q -nic bridge,br=b", "use tap, stream or dgram" },
	{ "q -netdev socket,id=n,listen=:1", "use stream or dgram" },
	{ "q -net nic -net user", "is not held" },
	{ "q -netdev tap,ifname=t", "without an id" },
	{ "q -netdev tap,id=n,fd=3", "fd=: ftqemu does not know this option" },
	{ "q -nic tap,queues=4", "queues=: ftqemu does not know this option" },
	{ "q -netdev {\"type\":\"tap\",\"id\":\"n\"}", "JSON is not understood here" },
	{ "q -netdev tap,id=a/b", "no slash" },
	{ "q -nic tap -nic tap -nic tap -nic tap -nic tap -nic tap -nic tap -nic tap -nic tap",
	  "more than 8 network cards" },
	{ "q -netdev tap,id=n,vhost=on", "vhost writes guest memory" },
	{ "q -netdev vhost-user,id=n,chardev=c", "vhost writes guest memory" },
	{ "q -vnc :1", "what the guest draws" },
	{ "q -display gtk", "use -display none" },
	{ "q -spice port=1", "what the guest draws" },
	{ "q -audiodev alsa,id=a", "sound" },
	{ "q -qmp stdio", "stdio belongs to ftqemu" },
	{ "q -chardev stdio,id=c -mon chardev=c,mode=control", "QMP on stdio" },
	{ "q -serial stdio -serial stdio", "stdio is used by two" },
	{ "q -serial stdio -monitor stdio", "stdio is used by two" },
	{ "q -serial telnet:h:1,server", "cannot be held" },
	{ "q -serial pipe:/x", "cannot be held" },
	{ "q -chardev udp,id=u,port=1", "cannot be held" },
	{ "q -chardev socket,id=c,host=h,port=1,telnet=on", "telnet" },
	{ "q -chardev socket,id=c,port=1", "wants path=" },
	{ "q -chardev file,id=c,path=f,logfile=g", "logfile=" },
	{ "q -chardev stdio", "wants a backend and an id" },
	{ "q -chardev stdio,id=../x", "no slash" },
	{ "q -chardev file,id=c", "wants a path" },
	{ "q -serial tcp:nohost", "wants HOST:PORT" },
	{ "q -nodefaults -m", "-m: wants an argument" },
	{ "q -frobnicate", "-frobnicate: ftqemu does not know this option" },
	{ "q -", "-: ftqemu does not know this option" },
};

Test(cmdline, refuses_with_a_reason)
{
	size_t i;

	for (i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
		const struct refusal *r = &refusals[i];
		char words[512];
		int rc;

		err = (struct ft_error){ 0 };
		snprintf(words, sizeof(words), "%s%s", r->words, strstr(r->words, "-nodefaults") ? "" : " -nodefaults");
		rc = rewrite(words);
		cr_expect_lt(rc, 0, "%s was not refused", words);
		cr_expect_eq(rc, err.code, "%s", words);
		cr_expect(strstr(err.msg, r->says), "%s: \"%s\" does not say \"%s\"", words, err.msg, r->says);
	}
}

Test(cmdline, refuses_the_default_network_card)
{
	cr_assert_eq(rewrite("q -m 64"), -ENOTSUP);
	cr_assert(strstr(err.msg, "say -nic tap,... or -nic none"), "%s", err.msg);
	cr_assert_eq(rewrite("q -m 64 -nic none"), 0);
	cr_assert_eq(rewrite("q -m 64 -net none"), 0);
	cr_assert_eq(rewrite("q -m 64 -nodefaults"), 0);
}

Test(cmdline, refuses_nothing_at_all)
{
	char *none[] = { NULL };

	req.argv = none;
	cr_assert_eq(cmdline_rewrite(&out, &req, &err), -EINVAL);
	cr_assert_eq(rewrite("q"), -ENOTSUP); /* the network card */
}

Test(cmdline, unsafe_output_lets_pass_and_writes_it_down)
{
	req.unsafe_output = true;
	cr_assert_eq(
		rewrite("q -drive file=nbd:h:1 -netdev user,id=n -device e1000,netdev=n -vnc :1 -hda /dev/e -snapshot"),
		0, "%s", err.msg);
	cr_assert_eq(out.unheld.n, 5);
	cr_assert_str_eq(out.unheld.v[0], "-drive file=nbd:h:1");
	cr_assert(out.has_picture);
	/* but not what would be wrong without a word */
	cr_assert_eq(rewrite("q -nodefaults -device vfio-pci,host=1"), -ENOTSUP);
	cr_assert_eq(rewrite("q -nodefaults -netdev tap,id=n,vhost=on"), -ENOTSUP);
	cr_assert_eq(rewrite("q -m 64"), 0);
	cr_assert_str_eq(out.unheld.v[0], "the default network card");
}

/* ---- rewritten ---------------------------------------------------------------------------------- */

Test(cmdline, adds_its_own)
{
	const char *line = rewritten("qemu -nodefaults -m 256 -kernel k");

	cr_assert_eq(out.ram_bytes, 256u << 20);
	cr_assert(!strncmp(line, "qemu -nodefaults -m 256 -kernel k ", 34), "%s", line);
	cr_assert(has_words(line,
			    "-object memory-backend-file,id=ft-ram,mem-path=/proc/self/fd/7,size=268435456,share=on"));
	cr_assert(has_words(line, "-machine memory-backend=ft-ram,suppress-vmdesc=on"));
	cr_assert(has_words(line, "-global migration.send-configuration=off"));
	cr_assert(has_words(line, "-chardev socket,id=ft-qmp,path=/run/ft/vm/qmp.sock,server=on,wait=off -mon "
				  "chardev=ft-qmp,mode=control"));
	cr_assert(has_words(line, "-plugin file=/lib/ft/ft-shim.so"));
	cr_assert(has_words(line, "-machine type=pc-i440fx-7.2"));
	cr_assert(has_words(line, "-only-migratable"));
	cr_assert(has_words(line, "-no-user-config"));
	cr_assert(has_words(line, "-display none"));
	cr_assert(has_words(line, "-S"));
	cr_assert_not(has_words(line, "-incoming defer"));
	cr_assert(out.bare_stream);
	cr_assert_gt(out.notes.n, 5);
}

#define OUR_NETDEV(id) "-netdev stream,id=" id ",server=on,addr.type=unix,addr.path=/run/ft/vm/net-" id ".sock"

Test(cmdline, network_cards_go_through_us)
{
	const char *line =
		rewritten("q -nodefaults -netdev tap,id=n,ifname=t0,script=no -device virtio-net-pci,netdev=n "
			  "-nic tap,model=virtio,mac=52:54:00:00:00:01,ifname=t1 -nic stream,id=s,server=on,"
			  "addr.type=unix,addr.path=/x,,y -net nic,netdev=n");

	cr_assert(has_words(line, OUR_NETDEV("n") " -device virtio-net-pci,netdev=n"), "%s", line);
	cr_assert(has_words(line,
			    OUR_NETDEV("ft-net1") " -net nic,netdev=ft-net1,model=virtio,macaddr=52:54:00:00:00:01"),
		  "%s", line);
	cr_assert(has_words(line, OUR_NETDEV("s") " -net nic,netdev=s"), "%s", line);
	cr_assert_eq(out.nr_nics, 3);
	cr_assert_str_eq(out.nic[0].id, "n");
	cr_assert_str_eq(out.nic[0].socket, "/run/ft/vm/net-n.sock");
	cr_assert_str_eq(out.nic[0].destination, "tap,ifname=t0,script=no");
	cr_assert_str_eq(out.nic[1].destination, "tap,ifname=t1");
	cr_assert_str_eq(out.nic[2].destination, "stream,server=on,addr.type=unix,addr.path=/x,,y");
	/* a QEMU that runs already: our own is fine, another one is not held */
	req.running = true;
	cr_assert_eq(rewrite("q -nodefaults " OUR_NETDEV("n")), 0, "%s", err.msg);
	cr_assert_eq(rewrite("q -nodefaults -netdev tap,id=n"), -ENOTSUP);
	cr_assert_eq(rewrite("q -nodefaults -nic tap"), -ENOTSUP);
}

Test(cmdline, both_roles_differ_by_incoming_only)
{
	char primary[4096];

	snprintf(primary, sizeof(primary), "%s -incoming defer",
		 rewritten("q -nodefaults -M q35 -m 1G -serial file:x"));
	req.is_secondary = true;
	cr_assert_str_eq(rewritten("q -nodefaults -M q35 -m 1G -serial file:x"), primary);
}

Test(cmdline, without_plugins_nothing_is_loaded_by_option)
{
	req.has_plugins = false;
	cr_assert_not(strstr(rewritten("q -nodefaults"), "-plugin"));
}

Test(cmdline, says_each_thing_once)
{
	const char *line = rewritten("q -nodefaults -no-user-config -only-migratable -display none -global "
				     "migration.send-configuration=off -m 8");

	cr_assert(has_words(line, "-no-user-config"));
	cr_assert_null(strstr(strstr(line, "-no-user-config") + 5, "-no-user-config"));
	cr_assert_null(strstr(strstr(line, "-only-migratable") + 5, "-only-migratable"));
	cr_assert_null(strstr(strstr(line, "-display") + 5, "-display"));
	cr_assert_null(strstr(strstr(line, "send-configuration") + 5, "send-configuration"));
}

struct size_case {
	const char *arg;
	uint64_t bytes;
};

Test(cmdline, sizes_of_memory)
{
	static const struct size_case cases[] = {
		{ "-m 256", 256u << 20 },       { "-m 256M", 256u << 20 },
		{ "-m 1G", 1u << 30 },          { "-m 1.5G", 3u << 29 },
		{ "-m 100k", 106496 },          { "-m size=2g", UINT64_C(2) << 30 },
		{ "-m 1T", UINT64_C(1) << 40 }, { "-m 8192B", 8192 },
		{ "-m 8193b", 16384 },          { "", 128u << 20 },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char words[100];

		snprintf(words, sizeof(words), "q -nodefaults %s", cases[i].arg);
		rewritten(words);
		cr_expect_eq(out.ram_bytes, cases[i].bytes, "%s: %llu", words, (unsigned long long)out.ram_bytes);
	}
	cr_assert(has_words(rewritten("q -nodefaults"), "-m 128M"));
}

Test(cmdline, aliases_of_machines_get_their_version)
{
	cr_assert(has_words(rewritten("q -nodefaults -M pc"), "-M pc-i440fx-7.2"));
	cr_assert(has_words(rewritten("q -nodefaults -machine q35,accel=tcg"), "-machine pc-q35-7.2,accel=tcg"));
	cr_assert(has_words(rewritten("q -nodefaults -machine accel=tcg,type=q35"),
			    "-machine accel=tcg,type=pc-q35-7.2"));
	cr_assert(has_words(rewritten("q -nodefaults -M pc-i440fx-7.2"), "-M pc-i440fx-7.2"));
	cr_assert(has_words(rewritten("q -nodefaults -M microvm"), "-M microvm"));
	/* an option without a type does not stand in for it */
	cr_assert(has_words(rewritten("q -nodefaults -machine accel=tcg"), "-machine type=pc-i440fx-7.2"));
	req.machines = NULL;
	cr_assert(has_words(rewritten("q -nodefaults -M pc"), "-M pc"));
}

struct console_case {
	const char *words, *becomes, *id, *destination;
};

Test(cmdline, consoles_go_through_sockets)
{
#define SOCKET(id) "-chardev socket,id=" id ",path=/run/ft/vm/con-" id ".sock,server=on,wait=off"
	static const struct console_case cases[] = {
		{ "-serial stdio", SOCKET("ft-serial0") " -serial chardev:ft-serial0", "ft-serial0", "stdio" },
		{ "-serial file:a,b", SOCKET("ft-serial0") " -serial chardev:ft-serial0", "ft-serial0",
		  "file,path=a,,b" },
		{ "-serial pty", SOCKET("ft-serial0") " -serial chardev:ft-serial0", "ft-serial0", "pty" },
		{ "-serial unix:/s,server,nowait", SOCKET("ft-serial0") " -serial chardev:ft-serial0", "ft-serial0",
		  "socket,path=/s,server=on,wait=off" },
		{ "-serial tcp:[::1]:7,server=on", SOCKET("ft-serial0") " -serial chardev:ft-serial0", "ft-serial0",
		  "socket,server=on,host=[::1],port=7" },
		{ "-serial mon:stdio",
		  SOCKET("ft-serial0") ",mux=on -serial chardev:ft-serial0 -mon chardev=ft-serial0,mode=readline",
		  "ft-serial0", "stdio,signal=off" },
		{ "-monitor unix:/m,server=on,wait=off",
		  SOCKET("ft-monitor0") " -mon chardev=ft-monitor0,mode=readline", "ft-monitor0",
		  "socket,path=/m,server=on,wait=off" },
		{ "-parallel file:p", SOCKET("ft-parallel0") " -parallel chardev:ft-parallel0", "ft-parallel0",
		  "file,path=p" },
		{ "-debugcon stdio", SOCKET("ft-debugcon0") " -debugcon chardev:ft-debugcon0", "ft-debugcon0",
		  "stdio" },
		{ "-chardev stdio,id=c0,mux=on -mon chardev=c0", SOCKET("c0") ",mux=on -mon chardev=c0", "c0",
		  "stdio" },
		{ "-chardev file,id=c0,path=/a,,b,append=on -device isa-serial,chardev=c0",
		  SOCKET("c0") " -device isa-serial,chardev=c0", "c0", "file,path=/a,,b,append=on" },
		{ "-chardev socket,id=c0,path=/s,server=on", SOCKET("c0"), "c0", "socket,path=/s,server=on" },
	};
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		const struct console_case *c = &cases[i];
		char words[300];
		const char *line;

		snprintf(words, sizeof(words), "q -nodefaults %s", c->words);
		line = rewritten(words);
		cr_expect(has_words(line, c->becomes), "%s\n became %s\n without  %s", words, line, c->becomes);
		cr_assert_eq(out.nr_consoles, 1, "%s", words);
		cr_expect_str_eq(out.console[0].id, c->id);
		cr_expect_str_eq(out.console[0].destination, c->destination);
	}
}

Test(cmdline, what_nobody_sees_is_left_alone)
{
	static const char *const cases[] = { "-serial none",  "-serial null",       "-serial vc",
					     "-monitor none", "-chardev null,id=n", "-chardev ringbuf,id=r,size=64",
					     "-parallel none" };
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char words[100];

		snprintf(words, sizeof(words), "q -nodefaults %s", cases[i]);
		cr_expect(has_words(rewritten(words), cases[i]), "%s", cases[i]);
		cr_expect_eq(out.nr_consoles, 0, "%s", cases[i]);
	}
}

Test(cmdline, somebody_elses_qmp_stays)
{
	const char *line = rewritten("q -nodefaults -chardev socket,id=q,path=/q,server=on,wait=off -mon "
				     "chardev=q,mode=control -qmp unix:/r,server=on");

	cr_assert(has_words(line, "-chardev socket,id=q,path=/q,server=on,wait=off"));
	cr_assert(has_words(line, "-qmp unix:/r,server=on"));
	cr_assert_eq(out.nr_consoles, 0);
}

Test(cmdline, no_picture_is_drawn_unless_it_was_asked_for)
{
	cr_assert(strstr(rewritten("q -nic none"), "-display none"));
	cr_assert(strstr(rewritten("q -nic none -vnc none"), "-display none"));
	cr_assert(strstr(rewritten("q -nographic -nic none -vnc none"), "-display none"));
}

Test(cmdline, nographic_is_what_qemu_makes_of_it)
{
	const char *line = rewritten("q -nographic -nic none");

	cr_assert_not(strstr(line, "-nographic"));
	cr_assert(has_words(line, "-display none"));
	cr_assert(strstr(line, "mux=on -serial chardev:ft-serial0 -mon chardev=ft-serial0,mode=readline"), "%s", line);
	cr_assert_str_eq(out.console[0].destination, "stdio,signal=off");
	/* with a serial port of its own the monitor is alone on stdio */
	line = rewritten("q -nographic -nic none -serial file:x");
	cr_assert_eq(out.nr_consoles, 2);
	cr_assert_str_eq(out.console[1].destination, "stdio");
	cr_assert(strstr(line, "-mon chardev=ft-monitor1"), "%s", line);
	rewritten("q -nographic -nodefaults");
	cr_assert_eq(out.nr_consoles, 0);
}

Test(cmdline, harmless_disks_pass)
{
	static const char *const cases[] = { "-drive file=d,readonly=on", "-drive file=d,read-only=on,if=virtio",
					     "-drive file=c,media=cdrom", "-cdrom c.iso", "-drive if=none,id=e",
					     "-blockdev driver=file,node-name=n,filename=f,read-only=on",
					     "-blockdev null-co,node-name=n",
					     "-drive if=pflash,readonly=on,file=code.fd",
					     /* a file that nobody writes may be in use twice */
					     "-drive file=d,readonly=on -drive file=d,readonly=on" };
	size_t i;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char words[200];

		snprintf(words, sizeof(words), "q -nodefaults %s", cases[i]);
		cr_expect(has_words(rewritten(words), cases[i]), "%s", cases[i]);
	}
	rewrite("q -nodefaults -blockdev "
		"{\"driver\":\"file\",\"node-name\":\"n\",\"filename\":\"f\",\"read-only\":true}");
	cr_assert_eq(err.code, 0, "%s", err.msg);
}

Test(cmdline, disks_that_are_replicated_pass)
{
	static const char *const cases[] = {
		"-drive file=d.img",
		"-drive d.img",
		"-drive file=d.img,format=raw,if=virtio",
		"-drive file=/a/b:c,driver=qcow2,if=none,id=d -device virtio-blk-pci,drive=d",
		"-drive file=file:d.img,format=qcow2,if=ide,cache=none",
		"-drive file.driver=file,file.filename=d.img,format=raw",
		"-drive file=d.img,snapshot=off",
		"-hda a.img -hdb b.img",
		"-blockdev driver=file,node-name=f,filename=d.img -blockdev driver=qcow2,node-name=n,file=f",
		"-blockdev qcow2,node-name=n,file.driver=file,file.filename=d.img",
		"-drive file=d.img,readonly=on -drive file=d.img,format=raw",
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		char words[200];

		snprintf(words, sizeof(words), "q -nodefaults %s", cases[i]);
		cr_expect(has_words(rewritten(words), cases[i]), "%s", cases[i]);
		cr_expect_eq(out.unheld.n, 0, "%s", cases[i]);
	}
	rewrite("q -nodefaults -blockdev {\"driver\":\"file\",\"node-name\":\"f\",\"filename\":\"d\"} "
		"-blockdev {\"driver\":\"raw\",\"node-name\":\"n\",\"file\":\"f\"}");
	cr_assert_eq(err.code, 0, "%s", err.msg);
	/* with --unsafe-output too, a file that two disks write is wrong */
	req.unsafe_output = true;
	cr_assert_eq(rewrite("q -nodefaults -hda d.img -hdb d.img"), -ENOTSUP);
}

Test(cmdline, names_are_found)
{
	rewritten("q -nodefaults -name web1");
	cr_assert_str_eq(out.name, "web1");
	rewritten("q -nodefaults -name guest=web2,debug-threads=on");
	cr_assert_str_eq(out.name, "web2");
	rewritten("q -nodefaults");
	cr_assert_null(out.name);
}

Test(cmdline, arguments_are_not_taken_for_options)
{
	char *argv[] = { "q", "-nodefaults", "-append", "-daemonize -S", "-kernel", "-incoming", NULL };

	req.argv = argv;
	cr_assert_eq(cmdline_rewrite(&out, &req, &err), 0, "%s", err.msg);
	cr_assert_str_eq(out.argv.v[3], "-daemonize -S");
	cr_assert_str_eq(out.argv.v[5], "-incoming");
}

Test(cmdline, commas_in_paths_are_doubled)
{
	const char *line;

	req.run_dir = "/run/a,b";
	req.shim = "/x,y.so";
	line = rewritten("q -nodefaults -serial stdio");
	cr_assert(strstr(line, "path=/run/a,,b/qmp.sock,"));
	cr_assert(strstr(line, "path=/run/a,,b/con-ft-serial0.sock,"));
	cr_assert(strstr(line, "file=/x,,y.so"));
	cr_assert_str_eq(out.console[0].socket, "/run/a,b/con-ft-serial0.sock");
}

/* ---- a QEMU that runs already ------------------------------------------------------------------- */

Test(cmdline, what_was_rewritten_passes_when_running)
{
	static const char words[] = "q -nographic -nic none -m 64 -chardev file,id=c,path=/x -device virtio-serial "
				    "-device virtconsole,chardev=c";
	struct strv first;

	req.is_secondary = true;
	cr_assert_eq(rewrite(words), 0, "%s", err.msg);
	first = out.argv;
	out.argv = (struct strv){ 0 };
	cmdline_free(&out);
	req.running = true;
	req.argv = first.v;
	cr_assert_eq(cmdline_rewrite(&out, &req, &err), 0, "%s", err.msg);
	cr_assert_eq(out.argv.n, first.n);
	cr_assert(out.bare_stream);
	cr_assert_eq(out.unheld.n, 0);
	strv_free(&first);
}

Test(cmdline, running_output_that_is_not_ours_is_refused)
{
	req.running = true;
	cr_assert_eq(rewrite("q -nodefaults -serial stdio"), -ENOTSUP);
	cr_assert(strstr(err.msg, "does not go through ftqemu"), "%s", err.msg);
	cr_assert_eq(rewrite("q -nodefaults -chardev socket,id=c,path=/elsewhere/con-x.sock,server=on"), -ENOTSUP);
	cr_assert_eq(rewrite("q -nodefaults -device vhost-vsock-pci"), -ENOTSUP);
	cr_assert_eq(rewrite("q -nodefaults -serial null -S -daemonize -object memory-backend-memfd,id=m,size=1G -M "
			     "pc,memory-backend=m"),
		     0, "%s", err.msg);
	cr_assert_not(out.bare_stream);
	req.unsafe_output = true;
	cr_assert_eq(rewrite("q -nodefaults -serial stdio"), 0, "%s", err.msg);
	cr_assert_eq(out.unheld.n, 1);
}

/* ---- option syntax ------------------------------------------------------------------------------ */

Test(opts, round_trip)
{
	static const char *const cases[] = { "file,path=/a,,b,append=on", "path=,,", "a=b", "x,y=", "a==b,c=d=e" };
	struct opts o;
	size_t i;
	char *s;

	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		cr_assert_eq(opts_parse(&o, cases[i], "backend", NULL), 0);
		s = opts_print(&o, "backend");
		cr_expect_str_eq(s, cases[i]);
		free(s);
		opts_free(&o);
	}
}

Test(opts, last_one_wins_and_flags_are_on)
{
	struct opts o;

	cr_assert_eq(opts_parse(&o, "socket,path=/a,server,nowait,path=/b,x=off", "backend", NULL), 0);
	cr_assert_str_eq(opts_get(&o, "path"), "/b");
	cr_assert_str_eq(opts_get(&o, "backend"), "socket");
	cr_assert(opts_is_on(&o, "server", false));
	cr_assert_not(opts_is_on(&o, "wait", true));
	cr_assert_not(opts_is_on(&o, "x", true));
	cr_assert(opts_is_on(&o, "missing", true));
	opts_unset(&o, "path");
	cr_assert_null(opts_get(&o, "path"));
	opts_free(&o);
}

Test(opts, sizes)
{
	uint64_t n;

	cr_assert_eq(opts_size("1.5K", 1, &n), 0);
	cr_assert_eq(n, 1536);
	cr_assert_eq(opts_size("", 1, &n), -EINVAL);
	cr_assert_eq(opts_size("0x10", 1, &n), -EINVAL);
	cr_assert_eq(opts_size("1e3", 1, &n), -EINVAL);
	cr_assert_eq(opts_size("1.2.3", 1, &n), -EINVAL);
	cr_assert_eq(opts_size("-1", 1, &n), -EINVAL);
	cr_assert_eq(opts_size("99999999999999999999E", 1, &n), -ERANGE);
	cr_assert_eq(opts_size("1KB", 1, &n), -EINVAL);
}
