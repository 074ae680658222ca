package exec_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/spillway-ml/spillway/workers/exec"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
	"github.com/spillway-ml/spillway/workers/exec/state"
	"github.com/spillway-ml/spillway/workers/schedule"
)

// parameters returns what a pipeline has learnt, by name.
func parameters(tb testing.TB, p exec.Pipeline) map[string][]float64 {
	tb.Helper()
	all := map[string][]float64{}
	for _, path := range save(tb, p, filepath.Join(tb.TempDir(), "now"), exec.Meta{}).Paths() {
		file, err := state.Open(path)
		if err != nil {
			tb.Fatal(err)
		}
		for _, name := range file.Names() {
			tensor, err := file.Read(name)
			if err != nil {
				tb.Fatal(err)
			}
			if all[name], err = exectest.Numbers(tensor); err != nil {
				tb.Fatal(err)
			}
		}
		if err := file.Close(); err != nil {
			tb.Fatal(err)
		}
	}
	return all
}

func save(tb testing.TB, p exec.Pipeline, directory string, meta exec.Meta) exec.Checkpoint {
	tb.Helper()
	wait, err := exec.Save(tb.Context(), p, directory, meta)
	if err != nil {
		tb.Fatal(err)
	}
	c, err := wait()
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// entries are the names in a directory.
func entries(tb testing.TB, directory string) []string {
	tb.Helper()
	list, err := os.ReadDir(directory)
	if err != nil {
		tb.Fatal(err)
	}
	names := []string{}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func TestTrainingGoesOnFromACheckpointInAnotherSplit(t *testing.T) {
	t.Parallel()
	two, four := layout(24, 4, 4), layout(24, 4, 2, 4, 6)
	s2, s4 := must(schedule.GPipe(2, 4, schedule.Options{})),
		must(schedule.OneForwardOneBackward(4, 4, schedule.Options{}))
	first := load(t, exectest.Options{}, two)
	e := engine(t, first, s2, exec.EngineOptions{})
	losses(t, e, 0, 5)
	directory := filepath.Join(t.TempDir(), "checkpoints", "step-5")
	meta := exec.Describe("reference", two)
	meta.Step, meta.Loss = 5, 1.25
	wait, err := exec.Save(t.Context(), first, directory, meta)
	if err != nil {
		t.Fatal(err)
	}
	want := losses(t, e, 5, 12) // training goes on before the checkpoint is on the disk
	saved, err := wait()
	if err != nil {
		t.Fatal(err)
	}
	opened, err := exec.OpenCheckpoint(directory)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(saved, opened); diff != "" {
		t.Error(diff)
	}
	meta.Model = first.Data().Model
	if diff := cmp.Diff(meta, opened.Meta); diff != "" {
		t.Error(diff)
	}
	if opened.Bytes() <= 0 || len(opened.Paths()) != 2 {
		t.Errorf("%v in %v", opened.Bytes(), opened.Paths())
	}
	second := load(t, exectest.Options{}, four)
	if err := exec.Restore(t.Context(), second, opened); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, losses(t, engine(t, second, s4, exec.EngineOptions{}), 5, 12)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"step-5"}, entries(t, filepath.Dir(directory))); diff != "" {
		t.Error(diff)
	}
}

func TestACheckpointReplacesTheOneOfItsName(t *testing.T) {
	t.Parallel()
	p := load(t, exectest.Options{}, layout(24, 4, 4))
	directory := filepath.Join(t.TempDir(), "last")
	save(t, p, directory, exec.Meta{Step: 1})
	save(t, p, directory, exec.Meta{Step: 2})
	c, err := exec.OpenCheckpoint(directory)
	if err != nil || c.Meta.Step != 2 {
		t.Errorf("got step %d, %v", c.Meta.Step, err)
	}
	if diff := cmp.Diff([]string{"last"}, entries(t, filepath.Dir(directory))); diff != "" {
		t.Error(diff)
	}
}

func TestWhatACrashLeftIsRemovedAndWhatIsBeingWrittenIsNot(t *testing.T) {
	t.Parallel()
	p := load(t, exectest.Options{}, layout(24, 4, 4))
	parent := t.TempDir()
	for _, name := range []string{".step-1.unfinished-123", "mine", ".mine"} {
		if err := os.Mkdir(filepath.Join(parent, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	first, err := exec.Save(t.Context(), p, filepath.Join(parent, "a"), exec.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	second, err := exec.Save(t.Context(), p, filepath.Join(parent, "b"), exec.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	for _, wait := range []func() (exec.Checkpoint, error){second, first} {
		if _, err := wait(); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{".mine", "a", "b", "mine"}, entries(t, parent)); diff != "" {
		t.Error(diff)
	}
}

func TestAttackWhatAnotherUserPutBesideACheckpointHindersNone(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root makes a directory of another user")
	}
	p := load(t, exectest.Options{}, layout(24, 4, 4))
	parent := t.TempDir()
	planted := filepath.Join(parent, ".a.unfinished-123")
	if err := errors.Join(os.Mkdir(planted, 0o755), os.Lchown(planted, 65534, 65534)); err != nil {
		t.Fatal(err)
	}
	save(t, p, filepath.Join(parent, "a"), exec.Meta{})
	if diff := cmp.Diff([]string{filepath.Base(planted), "a"}, entries(t, parent)); diff != "" {
		t.Error(diff)
	}
}

func TestACheckpointThatIsGivenUpLeavesNothing(t *testing.T) {
	t.Parallel()
	p := load(t, exectest.Options{}, layout(24, 4, 4))
	parent := t.TempDir()
	ctx, cancel := context.WithCancelCause(t.Context())
	wait, err := exec.Save(ctx, p, filepath.Join(parent, "a"), exec.Meta{})
	if err != nil {
		t.Fatal(err)
	}
	cancel(errBurnt)
	if _, err := wait(); !errors.Is(err, errBurnt) {
		t.Errorf("got %v, want %v", err, errBurnt)
	}
	if _, err := exec.Save(ctx, p, filepath.Join(parent, "a"), exec.Meta{}); !errors.Is(err, errBurnt) {
		t.Errorf("got %v, want %v", err, errBurnt)
	}
	if diff := cmp.Diff([]string{}, entries(t, parent)); diff != "" {
		t.Error(diff)
	}
}

func TestDamagedCheckpointsAreRefusedWithTheDamage(t *testing.T) {
	t.Parallel()
	whole := filepath.Join(t.TempDir(), "checkpoint")
	save(t, load(t, exectest.Options{}, layout(24, 4, 4)), whole, exec.Meta{})
	edit := func(name string, change func(string) string) func(string) error {
		return func(directory string) error {
			path := filepath.Join(directory, name)
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			return os.WriteFile(path, []byte(change(string(text))), 0o600)
		}
	}
	replaced := func(old, by string) func(string) error {
		return edit("manifest.json", func(s string) string { return strings.Replace(s, old, by, 1) })
	}
	const part = "part-1.safetensors"
	for name, test := range map[string]struct {
		damage func(directory string) error
		want   string
	}{
		"no manifest": {func(d string) error {
			return os.Remove(filepath.Join(d, "manifest.json"))
		}, "has no manifest.json"},
		"empty manifest": {edit("manifest.json", func(string) string { return "" }), "cut short"},
		"cut manifest":   {edit("manifest.json", func(s string) string { return s[:len(s)/2] }), "cut short"},
		"other version":  {replaced(`"version": 1`, `"version": 2`), "version 2"},
		"other step":     {replaced(`"step": 0`, `"step": -1`), "step -1"},
		"path":           {replaced(part, "../"+part), "plain names"},
		"absolute path":  {replaced(part, "/etc/passwd"), "plain names"},
		"parent":         {replaced(part, ".."), "plain names"},
		"name twice":     {replaced(part, "part-0.safetensors"), "each once"},
		"itself":         {replaced(part, "manifest.json"), "each once"},
		"no digest":      {replaced(`"sha256": "`, `"sha256": "zz`), "SHA-256"},
		"missing part":   {func(d string) error { return os.Remove(filepath.Join(d, part)) }, part + " is missing"},
		"cut part":       {edit(part, func(s string) string { return s[:len(s)-3] }), part + " is cut short: 3 of"},
		"long part":      {edit(part, func(s string) string { return s + "." }), "1 bytes too many"},
		"altered part": {edit(part, func(s string) string {
			return s[:len(s)-1] + string(s[len(s)-1]^1)
		}), part + " is altered: its SHA-256"},
		"link": {func(d string) error {
			path := filepath.Join(d, part)
			return errors.Join(os.Rename(path, path+".real"), os.Symlink(path+".real", path))
		}, "no plain file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			directory := filepath.Join(t.TempDir(), "checkpoint")
			if err := os.CopyFS(directory, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			if err := test.damage(directory); err != nil {
				t.Fatal(err)
			}
			_, err := exec.OpenCheckpoint(directory)
			if !errors.Is(err, exec.ErrCheckpoint) || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %v with %q", err, exec.ErrCheckpoint, test.want)
			}
		})
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := exec.OpenCheckpoint(file); !errors.Is(err, exec.ErrCheckpoint) {
		t.Errorf("a file: got %v, want %v", err, exec.ErrCheckpoint)
	}
	if _, err := exec.OpenCheckpoint(filepath.Join(t.TempDir(), "nothing")); !errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, exec.ErrCheckpoint) {
		t.Errorf("nothing: got %v, want %v", err, fs.ErrNotExist)
	}
}

func TestACheckpointOfAnotherModelIsRefused(t *testing.T) {
	t.Parallel()
	c := save(t, load(t, exectest.Options{}, layout(24, 4, 4)), filepath.Join(t.TempDir(), "a"), exec.Meta{})
	other := layout(24, 4)
	other.Parts[0].Ops = nil
	p := load(t, exectest.Options{Model: "batchnorm"}, other)
	if err := exec.Restore(t.Context(), p, c); !errors.Is(err, exec.ErrCheckpoint) {
		t.Errorf("got %v, want %v", err, exec.ErrCheckpoint)
	}
}
