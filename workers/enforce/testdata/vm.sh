#!/bin/sh
# Runs the tests of a package on cgroup v2, in a virtual machine whose first process is the test binary of
# workers/enforce: on a host with v1, this is how v2 is proved.
# Usage, in workers/enforce: testdata/vm.sh [ARGUMENT OF THE TEST BINARY]...
# for example: testdata/vm.sh -test.v -test.run Bomb
#              PACKAGE=../agent testdata/vm.sh -test.v -test.run 'Unknown|Lent'
# Environment: PACKAGE is the directory of the package, this one where it is not set. SPILLWAY_MEASURE=1 measures.
# APPS are commands that the package's tests would compile, each as NAME=DIRECTORY from the package; a machine with
# apps has a disk of DISK (32G, sparse) for its files, and the host's Python. MEMORY is in MiB. MINUTES is how long the
# machine may run, and PATIENCE how many times as long as a real one its tests wait. KERNEL is a kernel image, BOOT are
# more words for its command line. ACCEL=kvm uses the processor's own virtualisation where that works; the default is
# emulation, which works everywhere and takes minutes. ACCEL=uml runs the kernel as a process (User-Mode Linux):
# programs run as fast as on the host, system calls and page faults several times slower, on one CPU and without
# pressure stall information. SLOW=N makes its clock go N times slower than the host's, so that what it is slower by,
# and what other programs take from it, is not seen inside.
# A kernel of 6.19 or later that was built with ARCH=um, CONFIG_SMP and CONFIG_PSI has two CPUs, pressure and faster
# system calls with BOOT='ncpus=2 seccomp=on psi=1'.
# Debian packages: qemu-system-x86 linux-image-cloud-amd64, or user-mode-linux gcc; and cpio gzip golang e2fsprogs.
set -eu
accel=${ACCEL:-tcg}
threads=
case $accel in
tcg) patience=15 threads=,thread=multi ;;
uml) patience=3 ;;
*) patience=1 ;;
esac
patience=${PATIENCE:-$patience}
minutes=${MINUTES:-25}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"

# copy puts files, and the libraries that they load, at the paths that they have here.
copy() {
	for file in "$@" $(for name in "$@"; do ldd "$name" 2>/dev/null | grep -o '/[^ :]*' || true; done | sort -u); do
		case "$file" in "$work"/*) continue ;; esac
		mkdir -p "$work/root/$(dirname "$file")"
		[ -e "$work/root/$file" ] || cp -L "$file" "$work/root/$file"
	done
}

CGO_ENABLED=0 go test -c -o "$work/root/init" .
program=
disk=
if [ -n "${APPS:-}" ]; then
	# The programs lie on the disk: what is read of a file counts as memory only until somebody wants that.
	mkdir -p "$work/disk/built"
	go test -c -o "$work/disk/built/tests" "$PACKAGE"
	for app in $APPS; do
		(cd "$PACKAGE" && go build -o "$work/disk/built/${app%%=*}" "${app#*=}")
	done
	copy "$work"/disk/built/*
	program="ENFORCE_TEST_PROGRAM=/tmp/built/tests SPILLWAY_TEST_BUILT=/tmp/built"
	mke2fs -q -t ext4 -E root_owner=0:0 -d "$work/disk" "$work/image" "${DISK:-32G}"
	rm -rf "$work/disk"
	disk=image
	interpreter=$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')
	library=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
	copy "$interpreter" "$library"/lib-dynload/*.so
	mkdir -p "$work/root/usr/bin"
	tar -C / --exclude=site-packages --exclude=dist-packages --exclude=test --exclude='config-*' --exclude=idlelib \
		--exclude=lib-dynload --exclude=ensurepip -cf - ".$library" | tar -C "$work/root" -xf -
	ln -s "$interpreter" "$work/root/usr/bin/python3"
elif [ -n "${PACKAGE:-}" ]; then
	CGO_ENABLED=0 go test -c -o "$work/root/tests" "$PACKAGE"
	program=ENFORCE_TEST_PROGRAM=/tests
fi
# The programs that tests run as commands.
for name in sh cat env head id mkdir printf seq setsid sleep tail touch tr true wc; do
	path=$(readlink -f "$(command -v "$name" | grep / || echo "/usr/bin/$name")")
	copy "$path"
	mkdir -p "$work/root/usr/bin" "$work/root/bin"
	[ -e "$work/root/usr/bin/$name" ] || ln -s "$path" "$work/root/usr/bin/$name"
done
ln -sf ../usr/bin/sh "$work/root/bin/sh"
mkdir -p "$work/root/etc"
echo '127.0.0.1 localhost' >"$work/root/etc/hosts"
echo 'root:x:0:0:root:/tmp:/bin/sh' >"$work/root/etc/passwd"
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
rm -rf "$work/root"
# machine boots the kernel with these words on its command line. What follows -- goes to the first process as arguments;
# NAME=VALUE before it goes to its environment.
machine() {
	memory=${MEMORY:-2048}
	if [ "$accel" = uml ]; then
		gcc -O2 -shared -fPIC -o "$work/slow.so" testdata/slow.c
		# Its memory is a file in TMPDIR, else in /dev/shm.
		SLOW=${SLOW:-1} LD_PRELOAD=$work/slow.so env -u TMPDIR timeout "${minutes}m" "${KERNEL:-linux.uml}" \
			"mem=${memory}M" "initrd=$work/initrd" ${disk:+"ubd0=$work/$disk"} "uml_dir=$work" con=null con0=null,fd:1 "$@"
		return
	fi
	if [ -n "$disk" ]; then
		disk="-drive file=$work/$disk,if=none,id=disk,format=raw,cache=unsafe -device nvme,drive=disk,serial=1"
	fi
	# shellcheck disable=SC2086 # the words of $disk are arguments
	timeout "${minutes}m" qemu-system-x86_64 -accel "$accel$threads" -cpu max -smp 2 -m "$memory" -nographic -no-reboot \
		-nic none $disk -kernel "${KERNEL:-$(ls -v /boot/vmlinuz-* | tail -n 1)}" -initrd "$work/initrd" \
		-append "console=ttyS0 psi=1 $*"
}
# shellcheck disable=SC2086 # the words of $BOOT and $program are arguments
machine ${BOOT:-} quiet panic=-1 rdinit=/init SPILLWAY_TEST_REQUIRE=cgroup $program \
	"SPILLWAY_MEASURE=${SPILLWAY_MEASURE:-}" "SPILLWAY_TEST_PATIENCE=$patience" -- \
	"-test.timeout=$((minutes - 5))m" "$@" | tee "$work/log"
grep -q 'exit status 0, error <nil>' "$work/log"
