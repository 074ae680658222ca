package secrets_test

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spillway-ml/spillway/cmd/internal/secrets"
)

// directory has these files, by their paths.
func directory(t *testing.T, files map[string]string) secrets.Directory {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return secrets.Directory(dir)
}

func TestTheSecretOfAnAppCountsBeforeThatOfAll(t *testing.T) {
	t.Parallel()
	d := directory(t, map[string]string{
		"token": "for all\n", "digits/token": "for digits", "digits/own": " a\n b\n\n", "..data/token": "x", "README.md": "x",
	})
	for app, want := range map[string]map[string]string{
		"digits": {"token": "for digits", "own": " a\n b\n"}, "churn": {"token": "for all"},
	} {
		got, err := d.Read(app, slices.Collect(maps.Keys(want)))
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("Read(%q) = %q, %v, want %q", app, got, err, want)
		}
	}
	if _, err := d.Read("churn", []string{"own"}); !errors.Is(err, secrets.ErrUnusable) {
		t.Errorf("another app's secret: %v", err)
	}
	names, err := d.List()
	if want := []string{"digits/own", "digits/token", "token"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("List = %q, %v, want %q", names, err, want)
	}
}

func TestSecretsThatCannotBeUsedAreNamedAndNotRepeated(t *testing.T) {
	t.Parallel()
	const value = "sk-very-much-a-secret"
	d := directory(t, map[string]string{
		"open": value, "empty": "\n", "binary": value + "\x00\xff", "large": strings.Repeat(value, 1<<13), "good": value,
	})
	if err := os.Chmod(filepath.Join(string(d), "open"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"open": "chmod 600", "empty": "is empty", "binary": "is no text", "large": "has more than", "nowhere": "is not in",
		"../good": "use a lower-case word", "path": "PATH",
	} {
		err := d.Check("", []string{"good", name})
		if !errors.Is(err, secrets.ErrUnusable) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), value) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	if err := secrets.Directory("").Check("", []string{"good"}); err == nil ||
		!strings.Contains(err.Error(), "--secrets-dir") {
		t.Errorf("without a directory: %v", err)
	}
	if _, err := d.List(); err == nil || strings.Contains(err.Error(), value) {
		t.Errorf("List: %v, want what is wrong", err)
	}
}
