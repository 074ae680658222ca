#!/bin/sh
# Runs the tests of a package on cgroup v2, in a virtual machine whose first process is the test binary of
# workers/enforce: on a host with v1, this is how v2 is proved.
# Usage, in workers/enforce: testdata/vm.sh [ARGUMENT OF THE TEST BINARY]...
# for example: testdata/vm.sh -test.v -test.run Bomb
#              PACKAGE=../agent testdata/vm.sh -test.v -test.run 'Unknown|Lent'
# Environment: PACKAGE is the directory of the package, this one where it is not set. SPILLWAY_MEASURE=1 measures.
# KERNEL is a kernel image. ACCEL=kvm uses the processor's own virtualisation where that works; the default is
# emulation, which works everywhere and takes minutes.
# Debian packages: qemu-system-x86 linux-image-cloud-amd64 cpio gzip golang.
set -eu
kernel=${KERNEL:-$(ls -v /boot/vmlinuz-* | tail -n 1)}
accel=${ACCEL:-tcg}
patience=15
threads=,thread=multi
[ "$accel" = tcg ] || { patience=1 threads=; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/root"
CGO_ENABLED=0 go test -c -o "$work/root/init" .
program=
if [ -n "${PACKAGE:-}" ]; then
	CGO_ENABLED=0 go test -c -o "$work/root/tests" "$PACKAGE"
	program=ENFORCE_TEST_PROGRAM=/tests
fi
# The programs that tests run as commands, with the libraries that they load, at the paths that they have here.
for name in sh cat env head id mkdir printf seq setsid sleep tail touch tr true; do
	path=$(readlink -f "$(command -v "$name" | grep / || echo "/usr/bin/$name")")
	for file in $path $(ldd "$path" | grep -o '/[^ ]*'); do
		mkdir -p "$work/root/$(dirname "$file")"
		cp -L "$file" "$work/root/$file"
	done
	mkdir -p "$work/root/usr/bin" "$work/root/bin"
	[ -e "$work/root/usr/bin/$name" ] || ln -s "$path" "$work/root/usr/bin/$name"
done
ln -sf ../usr/bin/sh "$work/root/bin/sh"
(cd "$work/root" && find . | cpio -o -H newc --quiet | gzip -1) >"$work/initrd"
rm -rf "$work/root"
# What follows -- goes to the first process as arguments; NAME=VALUE before it goes to its environment.
timeout 1500 qemu-system-x86_64 -accel "$accel$threads" -cpu max -smp 2 -m "${MEMORY:-2048}" -nographic -no-reboot \
	-nic none -kernel "$kernel" -initrd "$work/initrd" \
	-append "console=ttyS0 quiet psi=1 panic=-1 SPILLWAY_TEST_REQUIRE=cgroup $program \
SPILLWAY_MEASURE=${SPILLWAY_MEASURE:-} ENFORCE_TEST_PATIENCE=$patience -- -test.timeout=20m $*" |
	tee "$work/log"
grep -q 'exit status 0, error <nil>' "$work/log"
