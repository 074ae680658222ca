package exec

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func FuzzManifest(f *testing.F) {
	f.Add([]byte(`{"version":1,"step":3,"parts":[{"file":"part-0","bytes":1,"sha256":"` + strings.Repeat("00", 32) +
		`"}]}`))
	f.Add([]byte(`{"version":1,"parts":[{"file":"../a"}]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		m, err := parseManifest(text)
		if err != nil {
			return
		}
		for _, p := range m.Parts {
			if filepath.Base(p.File) != p.File || p.File == "." || p.File == ".." || p.File == Manifest || p.Bytes < 0 {
				t.Fatalf("part %+v is taken", p)
			}
		}
		if _, err := json.Marshal(m); err != nil {
			t.Fatal(err)
		}
	})
}

func TestTwoDirectoriesAreExchanged(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(a, b string) error{"at once": exchange, "by renames": swap} {
		directory := t.TempDir()
		a, b := filepath.Join(directory, "a"), filepath.Join(directory, "b")
		for _, path := range []string{a, b, b + ".old"} {
			if err := os.MkdirAll(filepath.Join(path, "was-"+filepath.Base(path)), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if err := change(a, b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, path := range []string{filepath.Join(a, "was-b"), filepath.Join(b, "was-a")} {
			if _, err := os.Stat(path); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}
