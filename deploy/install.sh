#!/bin/sh
# Install Spillway on Linux or macOS, without Go and without root:
#
#   curl -fsSL https://github.com/spillway-ml/spillway/releases/latest/download/install.sh | sh
#
# It fetches the archive for this machine, compares its checksum, and puts spillway, spillway-runner and digits into
# ~/.local/bin. What it may be told, in the environment:
#
#   SPILLWAY_VERSION      the release, such as v0.2.0 (default the latest)
#   SPILLWAY_INSTALL_DIR  where the programs go (default ~/.local/bin)
#   SPILLWAY_VARIANT      gpu: the build that sees NVIDIA's GPUs (Linux on amd64, with glibc), plain: the other one
#                         (default gpu where there is such a driver)
#   SPILLWAY_RELEASES     the URL of the releases, of a mirror (default that of GitHub)
set -eu

main() {
	releases=${SPILLWAY_RELEASES:-https://github.com/spillway-ml/spillway/releases}
	version=${SPILLWAY_VERSION:-latest}
	directory=${SPILLWAY_INSTALL_DIR:-${HOME:?say where to install with SPILLWAY_INSTALL_DIR}/.local/bin}
	case $version in
	latest) base=$releases/latest/download ;;
	*) base=$releases/download/$version ;;
	esac
	archive=$(archive_name)

	work=$(mktemp -d)
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM
	echo "fetching $base/$archive.tar.gz" >&2
	fetch "$base/checksums.txt" "$work/checksums.txt"
	fetch "$base/$archive.tar.gz" "$work/$archive.tar.gz"
	want=$(awk -v name="$archive.tar.gz" '$2 == name { print $1 }' "$work/checksums.txt")
	got=$(checksum "$work/$archive.tar.gz")
	[ -n "$want" ] || fail "checksums.txt of this release has no $archive.tar.gz" \
		"name another release with SPILLWAY_VERSION"
	[ "$want" = "$got" ] || fail "the checksum of $archive.tar.gz is $got, and $want is wanted" \
		"fetch it again; if it stays so, somebody has changed it on the way"

	tar -C "$work" -xzf "$work/$archive.tar.gz"
	mkdir -p "$directory"
	for program in spillway spillway-runner digits; do
		cp "$work/$archive/$program" "$directory/.$program.new"
		chmod 0755 "$directory/.$program.new"
	done
	if ! installed=$("$directory/.spillway.new" version); then # what is there already stays
		for program in spillway spillway-runner digits; do
			rm -f "$directory/.$program.new"
		done
		fail "the spillway of $archive does not start here" \
			"try SPILLWAY_VARIANT=plain, which needs no library of this machine, or build it from the sources: make build"
	fi
	for program in spillway spillway-runner digits; do
		# A program that runs is replaced by its name: it goes on with the file that it was started from.
		mv -f "$directory/.$program.new" "$directory/$program"
	done
	echo "installed $installed into $directory" >&2
	case ":${PATH:-}:" in
	*":$directory:"*) ;;
	*) echo "add it to PATH: export PATH=\"$directory:\$PATH\"" >&2 ;;
	esac
	echo 'next: spillway doctor, then spillway run digits' >&2
}

# archive_name is the archive for this machine.
archive_name() {
	case $(uname -s) in
	Linux) os=linux ;;
	Darwin) os=darwin ;;
	*) fail "there is no build for $(uname -s)" "build it from the sources: make build" ;;
	esac
	case $(uname -m) in
	x86_64 | amd64) arch=amd64 ;;
	aarch64 | arm64) arch=arm64 ;;
	*) fail "there is no build for $(uname -m)" "build it from the sources: make build" ;;
	esac
	variant=${SPILLWAY_VARIANT:-}
	if [ -z "$variant" ] && [ "$os/$arch" = linux/amd64 ] && [ -e /proc/driver/nvidia/version ] &&
		getconf GNU_LIBC_VERSION >/dev/null 2>&1; then
		variant=gpu
	fi
	case $variant in
	gpu)
		[ "$os/$arch" = linux/amd64 ] || fail "there is no build that sees GPUs for $os/$arch" "leave SPILLWAY_VARIANT out"
		echo "spillway_${os}_${arch}_gpu"
		;;
	plain | '') echo "spillway_${os}_$arch" ;;
	*) fail "SPILLWAY_VARIANT is $variant" "say gpu or plain, or leave it out" ;;
	esac
}

# fetch URL FILE
fetch() {
	if command -v curl >/dev/null; then
		curl -fsSL --retry 3 -o "$2" "$1" || fail "fetch $1" "look whether there is such a release"
	elif command -v wget >/dev/null; then
		wget -q -O "$2" "$1" || fail "fetch $1" "look whether there is such a release"
	else
		fail "there is neither curl nor wget" "install one of them"
	fi
}

checksum() {
	if command -v sha256sum >/dev/null; then
		sha256sum "$1" | cut -d' ' -f1
	else
		shasum -a 256 "$1" | cut -d' ' -f1
	fi
}

# fail WHAT HINT
fail() {
	printf 'install Spillway: %s\n  hint: %s\n' "$1" "$2" >&2
	exit 1
}

main "$@" # last: a file that came in part does nothing
