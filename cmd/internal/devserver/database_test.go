package devserver

import (
	"os"
	"path/filepath"
	"testing"
)

func TestAttackTheDatabaseIsReadByItsOwnerOnly(t *testing.T) {
	t.Parallel()
	for name, files := range map[string][]string{
		"a new one":            nil,
		"one of earlier times": {"temporal.db", "temporal.db-wal", "temporal.db-shm"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for _, file := range files {
				path := filepath.Join(dir, file)
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				if err := os.Chmod(path, 0o644); err != nil { // whatever the umask is
					t.Fatal(err)
				}
			}
			d := newDatabase(dir, false)
			if err := d.prepare(); err != nil {
				t.Fatal(err)
			}
			found, err := filepath.Glob(filepath.Join(dir, "temporal.db*"))
			if err != nil || len(found) == 0 {
				t.Fatalf("files %v: %v", found, err)
			}
			for _, path := range found {
				info, err := os.Stat(path)
				if err != nil {
					t.Fatal(err)
				}
				if info.Mode().Perm() != 0o600 {
					t.Errorf("%s has mode %v, want 0600", filepath.Base(path), info.Mode())
				}
			}
		})
	}
}
