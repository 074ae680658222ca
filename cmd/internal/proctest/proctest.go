// Package proctest asks the kernel what the processes of a test have open (proc(5)). Only Linux tells; elsewhere its
// tests are skipped.
package proctest

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Need skips the test where the kernel does not tell what this process's user may know of pid.
func Need(tb testing.TB, pid int) {
	tb.Helper()
	if len(Descriptors(tb, pid)) == 0 {
		tb.Skipf("the kernel does not tell this user what process %d has open", pid)
	}
}

// Family is a process and all below it.
func Family(tb testing.TB, pid int) []int {
	tb.Helper()
	found := []int{pid}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		tb.Fatal(err)
	}
	for _, task := range tasks {
		text, err := os.ReadFile(task)
		if err != nil {
			continue // it has ended
		}
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				found = append(found, Family(tb, child)...)
			}
		}
	}
	return found
}

// Descriptors is what the processes hold open, such as "/a/file" and "socket:[7]". Those of other users are not this
// one's to see.
func Descriptors(tb testing.TB, pids ...int) (found []string) {
	tb.Helper()
	for _, pid := range pids {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			tb.Fatal(err)
		}
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil {
				found = append(found, target)
			}
		}
	}
	return found
}

// TCP are the addresses on which the processes listen.
func TCP(tb testing.TB, pids ...int) (addresses []netip.AddrPort) {
	tb.Helper()
	const listens, local, state, inode = "0A", 1, 3, 9
	held := Descriptors(tb, pids...)
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		for _, fields := range table(tb, file) {
			if len(fields) > inode && fields[state] == listens && slices.Contains(held, "socket:["+fields[inode]+"]") {
				addresses = append(addresses, address(tb, fields[local]))
			}
		}
	}
	return addresses
}

// Unix are the named sockets on which the processes listen; the name of one in the abstract namespace begins with an @.
func Unix(tb testing.TB, pids ...int) (names []string) {
	tb.Helper()
	const listens, flags, inode, name = "00010000", 3, 6, 7
	held := Descriptors(tb, pids...)
	for _, fields := range table(tb, "/proc/net/unix") {
		if len(fields) > name && fields[flags] == listens && slices.Contains(held, "socket:["+fields[inode]+"]") {
			names = append(names, fields[name])
		}
	}
	return names
}

// table is a file of lines of fields; nothing where there is none, as of TCP over IPv6.
func table(tb testing.TB, file string) (lines [][]string) {
	tb.Helper()
	text, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		lines = append(lines, strings.Fields(line))
	}
	return lines
}

// address reads an address as the kernel writes it: words of four bytes, each in the machine's order, and the port in
// hexadecimal digits.
func address(tb testing.TB, text string) netip.AddrPort {
	tb.Helper()
	host, port, _ := strings.Cut(text, ":")
	words, err := hex.DecodeString(host)
	if err != nil {
		tb.Fatal(err)
	}
	for word := range slices.Chunk(words, 4) {
		slices.Reverse(word)
	}
	number, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		tb.Fatal(err)
	}
	ip, _ := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(ip, uint16(number))
}
