package tree_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/spillway-ml/spillway/workers/command/commandtest"
	"github.com/spillway-ml/spillway/workers/command/tree"
)

func TestRulesLeaveFilesOut(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		rules string
		name  string
		dir   bool
		want  bool
	}{
		{"*.pyc", "a/b.pyc", false, true},
		{"*.pyc", "a.py", false, false},
		{"data", "a/data", false, true},
		{"/data", "a/data", false, false},
		{"/data", "data", false, true},
		{"a/data", "a/data", true, true},
		{"a/data", "b/a/data", true, false},
		{"data/", "data", false, false},
		{"data/", "x/data", true, true},
		{"**/logs", "logs", true, true},
		{"**/logs", "a/b/logs", true, true},
		{"a/**/b", "a/b", false, true},
		{"a/**/b", "a/x/y/b", false, true},
		{"a/**", "a", true, false},
		{"a/**", "a/x/y", false, true},
		{"a/*", "a/x/y", false, false},
		{"*.log\n!keep.log", "keep.log", false, false},
		{"!keep.log\n*.log", "keep.log", false, true},
		{"# data\n\n\\#x", "#x", false, true},
		{"[!a]x", "bx", false, true},
		{"[!a]x", "ax", false, false},
		{"data   ", "data", false, true},
		{"data\r", "data", false, true},
	} {
		ignore, err := tree.ParseIgnore(strings.NewReader(tt.rules))
		if err != nil {
			t.Fatalf("rules %q: %v", tt.rules, err)
		}
		if got := ignore.Match(tt.name, tt.dir); got != tt.want {
			t.Errorf("rules %q, name %q, directory %t: got %t, want %t", tt.rules, tt.name, tt.dir, got, tt.want)
		}
	}
}

func TestARuleThatCannotBeUnderstoodIsNamed(t *testing.T) {
	t.Parallel()
	for _, rules := range []string{"a\n[", "a\n/", "a\n!", "a\n" + strings.Repeat("x", 1<<20)} {
		if _, err := tree.ParseIgnore(strings.NewReader(rules)); err == nil ||
			!strings.Contains(err.Error(), "line 2") && !strings.Contains(err.Error(), "too long") {
			t.Errorf("rules %.20q: got %v, want an error that names line 2", rules, err)
		}
	}
}

func TestCachesAreLeftOutUnlessTakenBack(t *testing.T) {
	t.Parallel()
	dir := plant(t, map[string]string{
		".git/HEAD": "x", "a/__pycache__/m.pyc": "x", ".venv/bin/python": "x", "venv/x": "x", "a/node_modules/x/y": "x",
		"m.pyc": "x", "train.py": "x",
		"data/huge": "x", tree.IgnoreFile: "data/\n!venv/\n",
	})
	ignore, err := tree.ReadIgnore(dir)
	if err != nil {
		t.Fatal(err)
	}
	store, unpacked := commandtest.NewStore(), t.TempDir()
	if err := tree.Unpack(t.Context(), store, pack(t, store, dir, tree.Options{Ignore: ignore}), unpacked); err != nil {
		t.Fatal(err)
	}
	want := []string{tree.IgnoreFile, "a/", "train.py", "venv/", "venv/x"}
	if diff := cmp.Diff(want, names(harvest(t, unpacked))); diff != "" {
		t.Errorf("packed (-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, tree.IgnoreFile), []byte("["), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.ReadIgnore(dir); err == nil || !strings.Contains(err.Error(), tree.IgnoreFile) {
		t.Errorf("bad rules: got %v, want an error that names the file", err)
	}
}

func TestEnvironmentsAreLeftOutByNameAndBytesUnlessSomebodySaysSo(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		rules string
		want  []tree.Share
	}{
		"nobody says anything":       {"", []tree.Share{{".venv/", 5}, {"a/node_modules/", 3}, {"venv/", 0}}},
		"one is taken back":          {"!.venv/\n", []tree.Share{{"a/node_modules/", 3}, {"venv/", 0}}},
		"one is left out":            {"node_modules\n/venv\n", []tree.Share{{".venv/", 5}}},
		"one is in what is left out": {"a\n", []tree.Share{{".venv/", 5}, {"venv/", 0}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := plant(t, map[string]string{
				".venv/bin/python": "12", ".venv/lib/m.pyc": "345", "a/node_modules/x/y": "678",
				"a/node_modules/x/node_modules/z": "", ".git/venv/x": "x", "__pycache__/m.pyc": "x", "train.py": "x",
				tree.IgnoreFile: test.rules,
			})
			if err := os.Mkdir(filepath.Join(dir, "venv"), 0o700); err != nil {
				t.Fatal(err)
			}
			ignore, err := tree.ReadIgnore(dir)
			if err != nil {
				t.Fatal(err)
			}
			got, err := tree.Environments(t.Context(), dir, ignore)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("environments (-want +got):\n%s", diff)
			}
		})
	}
}

// Git knows the language: what it ignores is what we ignore.
func TestRulesMeanWhatTheyMeanToGit(t *testing.T) {
	t.Parallel()
	git, err := exec.LookPath("git")
	if err != nil {
		commandtest.Skip(t, "git", err)
	}
	rapid.Check(t, func(r *rapid.T) {
		segment := rapid.SampledFrom([]string{"a", "b", "ab", "*", "a*", "?", "[ab]", "[!a]", "**", "*b"})
		line := rapid.Custom(func(r *rapid.T) string {
			return rapid.SampledFrom([]string{"", "", "!"}).Draw(r, "negation") +
				rapid.SampledFrom([]string{"", "/"}).Draw(r, "anchor") +
				strings.Join(rapid.SliceOfN(segment, 1, 3).Draw(r, "segments"), "/") +
				rapid.SampledFrom([]string{"", "/"}).Draw(r, "end")
		})
		rules := strings.Join(rapid.SliceOfN(line, 1, 4).Draw(r, "rules"), "\n") + "\n"
		paths := rapid.SliceOfNDistinct(rapid.StringMatching(`(a|b|ab)(/(a|b|ab)){0,3}`), 1, 5, rapid.ID[string]).
			Draw(r, "files")
		dir := t.TempDir()
		var files []string
		for _, name := range paths { // "a" and "a/b" cannot both be files
			file := filepath.Join(dir, name)
			if os.MkdirAll(filepath.Dir(file), 0o700) == nil && os.WriteFile(file, nil, 0o600) == nil {
				files = append(files, name)
			}
		}
		ignore, err := tree.ParseIgnore(strings.NewReader(rules))
		if err != nil {
			r.Fatal(err)
		}
		want := gitIgnored(t, git, dir, rules, files)
		for _, name := range files {
			if got := left(ignore, name); got != want[name] {
				r.Errorf("rules %q, file %q: got ignored %t, git says %t", rules, name, got, want[name])
			}
		}
	})
}

// left reports whether a file is left out by itself or with a directory.
func left(ignore *tree.Ignore, name string) bool {
	for i, c := range name {
		if c == '/' && ignore.Match(name[:i], true) {
			return true
		}
	}
	return ignore.Match(name, false)
}

// gitIgnored asks git which files it ignores.
func gitIgnored(t *testing.T, git, dir, rules string, files []string) map[string]bool {
	t.Helper()
	for name, content := range map[string]string{
		".gitignore": rules, ".git/HEAD": "ref: refs/heads/main\n",
		".git/objects/x": "", ".git/refs/x": "",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(content), 0o600)); err !=
			nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), git, "check-ignore", "--no-index", "--stdin", "-z")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	cmd.Stdin = strings.NewReader(strings.Join(files, "\x00"))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 1) { // 1 says that none is ignored
		t.Fatalf("git check-ignore: %v", err)
	}
	ignored := make(map[string]bool)
	for name := range bytes.SplitSeq(out, []byte{0}) {
		ignored[string(name)] = true
	}
	return ignored
}

func FuzzIgnore(f *testing.F) {
	f.Add("*.pyc\n!a/**/b\n", "a/b/c.pyc")
	f.Add("[!a-", "a")
	f.Fuzz(func(_ *testing.T, rules, name string) {
		ignore, err := tree.ParseIgnore(strings.NewReader(rules))
		if err == nil {
			ignore.Match(name, false)
			ignore.Match(name, true)
		}
	})
}
