package devserver

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"go.temporal.io/server/common/persistence/sql/sqlplugin"
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

func TestTheDatabaseGivesBackWhatIsDeleted(t *testing.T) {
	t.Parallel()
	d := newDatabase(t.TempDir(), false)
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	const histories = `WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2000)
		INSERT INTO history_node (shard_id, tree_id, branch_id, node_id, txn_id, data, data_encoding)
		SELECT 1, zeroblob(16), zeroblob(16), i, i, randomblob(4000), 'Proto3' FROM n`
	size := func(statements ...string) int64 {
		err := d.exclusively(func(db sqlplugin.AdminDB) (err error) {
			for _, statement := range statements {
				err = errors.Join(err, db.Exec(statement))
			}
			return err
		})
		if err := errors.Join(err, d.checkpoint()); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(d.path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	empty, full := size(), size(histories)
	if deleted := size("DELETE FROM history_node"); deleted != full {
		t.Errorf("the file has %d bytes once all is deleted, want the %d before: nobody asked for them", deleted, full)
	}
	left := full
	for range 10 {
		if err := d.exclusively(vacuum); err != nil {
			t.Fatal(err)
		}
		now := size()
		if most := int64(giveBackPages+1) * 4096; left-now > most {
			t.Errorf("%d bytes were given back at a time, want %d at most", left-now, most)
		}
		left = now
	}
	if left > 2*empty {
		t.Errorf("the file had %d bytes when it was new, %d with histories in it, and has %d without them", empty, full, left)
	}
}
