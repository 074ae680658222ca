package exec

import (
	"errors"
	"os"
)

// swap exchanges two directories by three renames. If it is cut off in between, what was b is called b plus ".old".
func swap(a, b string) error {
	aside := b + ".old"
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := os.Rename(b, aside); err != nil {
		return err
	}
	if err := os.Rename(a, b); err != nil {
		return errors.Join(err, os.Rename(aside, b))
	}
	return os.Rename(aside, a)
}
