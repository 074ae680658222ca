package command

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// busyPatience is how long a program may stay open for writing: what closes it takes microseconds, or waits for a
// processor.
const busyPatience = 10 * time.Second

// awaitUnwritten waits until nobody has the file open for writing, which the kernel tells by granting a read lease
// (fcntl(2)). A forked child closes what it has inherited only after the fork has returned here, so waitForForks may be
// an instant too early. Where leases are not to be had, the program is started as it is.
func awaitUnwritten(path string) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe is not waited for
	if err != nil {
		return // starting it says why
	}
	defer func() { _ = file.Close() }()
	for deadline := time.Now().Add(busyPatience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		_, err := unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		if err == unix.EAGAIN {
			continue
		}
		if err == nil {
			_, _ = unix.FcntlInt(file.Fd(), unix.F_SETLEASE, unix.F_UNLCK) // closing gives it back as well
		}
		return
	}
}
