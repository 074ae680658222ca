package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wire"
	"github.com/spillway-ml/spillway/predictor/quantity"
	"github.com/spillway-ml/spillway/workers/command"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

// TestWhatAWorkspaceCosts prints figures and decides nothing.
func TestWhatAWorkspaceCosts(t *testing.T) { //nolint:paralleltest // it measures
	if os.Getenv("SPILLWAY_MEASURE") == "" {
		t.Skip("SPILLWAY_MEASURE is not set")
	}
	h := newHost(t)
	timed := func(what string, do func() error) {
		began := time.Now()
		if err := do(); err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %s", what, time.Since(began).Round(10*time.Microsecond))
	}
	for _, shape := range []struct {
		files, bytes int
	}{{100, 10 << 10}, {2000, 20 << 10}, {20, 20 << 20}} {
		name := fmt.Sprintf("%d files of %s", shape.files, quantity.Bytes(shape.bytes))
		dir := t.TempDir()
		for i := range shape.files {
			file := filepath.Join(dir, strconv.Itoa(i%20), strconv.Itoa(i))
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, make([]byte, shape.bytes+i), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		var code activities.Ref
		timed("pack "+name, func() (err error) {
			code, err = tree.Pack(t.Context(), h.store, dir, tree.Options{MaxBytes: tree.Unlimited})
			return err
		})
		timed("unpack "+name, func() error { return tree.Unpack(t.Context(), h.store, code, t.TempDir()) })
		for _, state := range []string{"cold", "cached", "cached, keeping changes"} {
			c := wire.Command{Arguments: []string{"true"}, Code: code, KeepChanged: state == "cached, keeping changes"}
			var w *command.Workspace
			timed("prepare, "+state+", "+name, func() (err error) {
				w, err = command.Prepare(t.Context(), h.Options, c, activities.Ref{})
				return err
			})
			timed("room used, "+name, func() error { _, err := w.Used(t.Context()); return err })
			timed("remove "+name, func() error { return w.Remove(t.Context()) })
		}
	}
}
