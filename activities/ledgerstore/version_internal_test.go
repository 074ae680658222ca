package ledgerstore

import (
	"errors"
	"testing"
)

func TestAnOldPostgreSQLIsRefused(t *testing.T) {
	t.Parallel()
	for number, fits := range map[int]bool{9_06_24: false, 12_00_22: false, 13_00_00: true, 18_00_01: true} {
		if err := checkVersion(number, "that"); errors.Is(err, errUnfit) == fits {
			t.Errorf("version %d: %v", number, err)
		}
	}
}
