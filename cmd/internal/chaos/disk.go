package chaos

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// diskSize is how large the file system of the state directory is, in memory that is taken when it is used: NATS wants
// room for all that its streams may hold.
const diskSize = "12g"

// disk is the file system of the state directory, which can be filled where it is one of its own.
type disk struct {
	mounted string // where; empty when the machine does not let us
}

// mount gives dir a file system of its own, where that is allowed. Nobody else has rights to it.
func mount(dir string) (disk, error) {
	if os.Getuid() != 0 {
		return disk{}, errors.New("only root may mount a file system to fill")
	}
	//nolint:noctx // it takes no time
	command := exec.Command("mount", "-t", "tmpfs", "-o", "mode=0700,size="+diskSize, "tmpfs", dir)
	if output, err := command.CombinedOutput(); err != nil {
		return disk{}, fmt.Errorf("mount a file system to fill: %w: %s", err, output)
	}
	return disk{mounted: dir}, nil
}

// unmount gives the file system back, with all that is in it.
func (d disk) unmount() error {
	if d.mounted == "" {
		return nil
	}
	if output, err := exec.Command("umount", d.mounted).CombinedOutput(); err != nil { //nolint:noctx // it takes no time
		return fmt.Errorf("unmount %s: %w: %s", d.mounted, err, output)
	}
	return nil
}

// fillTries bounds how often the disk is measured anew, because what is written meanwhile makes it too small to be made
// that small.
const fillTries = 20

// fill leaves no room beyond what is used, until the function that it returns is called.
func (d disk) fill() (free func() error, err error) {
	for range fillTries {
		var now syscall.Statfs_t
		if err := syscall.Statfs(d.mounted, &now); err != nil {
			return nil, fmt.Errorf("measure the disk: %w", err)
		}
		used := int64(now.Blocks-now.Bfree) + 1 // a size of 0 would be no limit
		if err = d.resize(strconv.FormatInt(used*now.Bsize, 10)); err == nil {
			return func() error { return d.resize(diskSize) }, nil
		}
	}
	return nil, err
}

func (d disk) resize(size string) error {
	//nolint:noctx // it takes no time
	if output, err := exec.Command("mount", "-o", "remount,size="+size, d.mounted).CombinedOutput(); err != nil {
		return fmt.Errorf("resize the file system at %s: %w: %s", d.mounted, err, output)
	}
	return nil
}
