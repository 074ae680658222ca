#!/bin/sh
# Runs the tests of this package on cgroup v2, in a virtual machine whose first process is the test binary: on a host
# with v1, this is how v2 is proved.
# Usage, in workers/enforce: testdata/vm.sh [ARGUMENT OF THE TEST BINARY]...
# for example: testdata/vm.sh -test.v -test.run Bomb
# Environment: SPILLWAY_MEASURE=1 measures. KERNEL is a kernel image. ACCEL=kvm uses the processor's
# own virtualisation where that works; the default is emulation, which works everywhere and takes minutes.
# Debian packages: qemu-system-x86 linux-image-cloud-amd64 cpio gzip golang.
set -eu
kernel=${KERNEL:-$(ls -v /boot/vmlinuz-* | tail -n 1)}
accel=${ACCEL:-tcg}
patience=15
threads=,thread=multi
[ "$accel" = tcg ] || { patience=1 threads=; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
CGO_ENABLED=0 go test -c -o "$work/init" .
(cd "$work" && echo init | cpio -o -H newc --quiet | gzip -1 >initrd)
# What follows -- goes to the first process as arguments; NAME=VALUE before it goes to its environment.
timeout 1500 qemu-system-x86_64 -accel "$accel$threads" -cpu max -smp 2 -m 2048 -nographic -no-reboot -nic none \
	-kernel "$kernel" -initrd "$work/initrd" \
	-append "console=ttyS0 quiet psi=1 panic=-1 SPILLWAY_TEST_REQUIRE=cgroup \
SPILLWAY_MEASURE=${SPILLWAY_MEASURE:-} ENFORCE_TEST_PATIENCE=$patience -- -test.timeout=20m $*" |
	tee "$work/log"
grep -q 'exit status 0, error <nil>' "$work/log"
