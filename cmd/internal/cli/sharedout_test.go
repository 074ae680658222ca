package cli_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/cli"
	"github.com/spillway-ml/spillway/cmd/internal/cli/clitest"
	"github.com/spillway-ml/spillway/workers/exec/exectest"
)

func TestAttackADirectoryThatOthersCanChangeGetsNoResult(t *testing.T) {
	t.Parallel()
	shared := t.TempDir()
	if err := os.Chmod(shared, 0o777); err != nil {
		t.Fatal(err)
	}
	chain := filepath.Join(clitest.Directory(t, map[string]string{"c.yaml": "name: c\ncode: none\nstages: {only: {run: " +
		"x, outputs: {o: o}}}\n"}), "c.yaml")
	plan := []string{
		"plan", clitest.WriteGraph(t, clitest.ChainGraph(4, 0.02)), "--devices",
		clitest.Write(t, "d.yaml", clitest.TwoDevices), "--svg", filepath.Join(shared, "plan.svg"),
	}
	for name, args := range map[string][]string{
		"a chain":                 {"run", chain, "--state", t.TempDir(), "--out", shared},
		"a training by a run":     {"train", clitest.ModelOf(t), "--state", t.TempDir(), "--out", shared},
		"a training here":         {"train", clitest.ModelOf(t), "--here", "--out", shared},
		"a picture":               plan,
		"the beginning of an app": {"init", shared, "--no-tidy"},
	} {
		code, stdout, stderr := clitest.Execute(t, t.Context(), clitest.Reference(exectest.Options{}), args...)
		if code != cli.ExitUsage || stdout != "" {
			t.Errorf("%s: got exit %d, stdout %q; want exit 2", name, code, stdout)
		}
		clitest.Contains(t, name, stderr, shared+" can be written to by others (mode 0777)\n  hint: give a directory "+
			"of your own")
	}
	if entries, err := os.ReadDir(shared); err != nil || len(entries) > 0 {
		t.Errorf("it has %v, %v", entries, err)
	}
	if code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, append(plan, "--shared-out")...); code !=
		cli.ExitOK {
		t.Errorf("when it is allowed: exit %d: %s", code, stderr)
	}
}

func TestAttackAPlantedLinkLeadsNoPictureAway(t *testing.T) {
	t.Parallel()
	dir, precious := t.TempDir(), clitest.Write(t, "precious", "precious")
	picture := filepath.Join(dir, "plan.svg")
	if err := os.Symlink(precious, picture); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := clitest.Execute(t, t.Context(), cli.Deps{}, "plan",
		clitest.WriteGraph(t, clitest.ChainGraph(4, 0.02)), "--devices", clitest.Write(t, "d.yaml", clitest.TwoDevices),
		"--svg", picture)
	if code != cli.ExitOK {
		t.Errorf("got exit %d: %s", code, stderr)
	}
	if text, err := os.ReadFile(precious); err != nil || string(text) != "precious" {
		t.Errorf("the file of another is %.40q, %v", text, err)
	}
}
