package secrecy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/spillway-ml/spillway/workers/procfs"
)

func conceal(names []string) error {
	err := overwrite(names) // first: the files of one that is not dumpable are root's
	if err != nil {
		err = fmt.Errorf("take secrets out of /proc/self/environ: %w", err)
	}
	// One byte is no core file, and for a core_pattern that is a program the sign that nothing is wanted, in this process
	// and in those that it starts (core(5), fs/coredump.c): their memory has the secrets that they were given.
	if limited := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1}); limited != nil {
		err = errors.Join(err, fmt.Errorf("leave no core files: %w", limited))
	}
	if denied := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); denied != nil {
		err = errors.Join(err, fmt.Errorf("keep others out of this process: %w", denied))
	}
	return err
}

// overwrite replaces the variables in the area of memory that /proc/self/environ shows.
func overwrite(names []string) error {
	if len(names) == 0 {
		return nil
	}
	start, err := areaStart()
	if err != nil {
		return err
	}
	area, err := os.ReadFile("/proc/self/environ")
	if err != nil {
		return err
	}
	memory, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	offset := int64(0)
	for entry := range bytes.SplitSeq(area, []byte{0}) {
		for _, name := range names {
			if value, is := bytes.CutPrefix(entry, []byte(name+"=")); is {
				_, failed := memory.WriteAt(bytes.Repeat([]byte("x"), len(value)), start+offset+int64(len(entry)-len(value)))
				err = errors.Join(err, failed)
			}
		}
		offset += int64(len(entry)) + 1
	}
	return errors.Join(err, memory.Close())
}

// areaStart is the address of the environment that the process was started with: field 50 of /proc/self/stat (proc(5)).
func areaStart() (int64, error) {
	const field, first = 50, 3
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, err
	}
	fields := procfs.Fields(stat)
	if len(fields) <= field-first {
		return 0, errors.New("/proc/self/stat is shorter than it should be")
	}
	return strconv.ParseInt(string(fields[field-first]), 10, 64)
}
