package spawntest

import (
	"os"
	"time"
)

// Meet leaves a file in dir and waits until there are n: so many processes are there at the same time.
func Meet(dir string, n int) error {
	f, err := os.CreateTemp(dir, "*")
	if err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	for {
		entries, err := os.ReadDir(dir)
		if err != nil || len(entries) >= n {
			return err
		}
		time.Sleep(5 * time.Millisecond)
	}
}
