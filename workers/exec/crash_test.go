package exec_test

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
)

// saverDirectory makes the test's binary save checkpoints there until it is killed.
const saverDirectory = "SPILLWAY_TEST_SAVER_DIRECTORY"

// saver saves one checkpoint after the other under the same name and prints their steps when they are there.
func saver(directory string) error {
	p, err := exectest.Reference(exectest.Options{}).Load(context.Background(), layout(24, 4, 4))
	if err != nil {
		return err
	}
	for step := int64(1); ; step++ {
		wait, err := exec.Save(context.Background(), p, directory, exec.Meta{Step: step})
		if err != nil {
			return err
		}
		if _, err := wait(); err != nil {
			return err
		}
		if _, err := fmt.Println(step); err != nil {
			return err
		}
	}
}

func TestAKilledSaverLeavesTheLastCheckpointOrTheNext(t *testing.T) {
	t.Parallel()
	directory := filepath.Join(t.TempDir(), "last")
	random := rand.New(rand.NewPCG(1, 2))
	for range 12 {
		if err := os.RemoveAll(directory); err != nil {
			t.Fatal(err)
		}
		child := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^$")
		child.Env = append(os.Environ(), saverDirectory+"="+directory)
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines, last := bufio.NewScanner(out), int64(0)
		for range 1 + random.IntN(3) {
			if !lines.Scan() {
				t.Fatal("the saver ended by itself")
			}
		}
		time.Sleep(time.Duration(random.IntN(4000)) * time.Microsecond) // any moment must do
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		for ok := true; ok; ok = lines.Scan() {
			if last, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
				break // the last line may be cut
			}
		}
		_ = child.Wait() // it was killed
		c, err := exec.OpenCheckpoint(directory)
		if err != nil {
			t.Fatalf("after step %d was saved: %v", last, err)
		}
		if c.Meta.Step < last || c.Meta.Step > last+1 {
			t.Errorf("the checkpoint is of step %d; %d was saved last", c.Meta.Step, last)
		}
	}
	save(t, load(t, exectest.Options{}, layout(24, 4, 4)), directory, exec.Meta{})
	left := slices.DeleteFunc(entries(t, filepath.Dir(directory)), func(name string) bool {
		return !strings.HasPrefix(name, ".")
	})
	if len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}
