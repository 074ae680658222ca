package release_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// archive is a release as far as the script can tell: programs that say a version.
func archive(t *testing.T, name, version string) []byte {
	t.Helper()
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	written := tar.NewWriter(compressed)
	for _, program := range []string{"spillway", "spillway-runner", "digits"} {
		text := []byte("#!/bin/sh\necho " + program + " " + version + "\n")
		if err := written.WriteHeader(&tar.Header{
			Name: name + "/" + program, Mode: 0o755, Size: int64(len(text)), Typeflag: tar.TypeReg,
		}); err != nil {
			t.Fatal(err)
		}
		if _, err := written.Write(text); err != nil {
			t.Fatal(err)
		}
	}
	if err := written.Close(); err != nil {
		t.Fatal(err)
	}
	if err := compressed.Close(); err != nil {
		t.Fatal(err)
	}
	return packed.Bytes()
}

// releases serves the files of a release under both of the addresses that a release has.
func releases(t *testing.T, files map[string][]byte) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, place := range []string{"/latest/download/", "/download/v1.2.3/"} {
			if name, ok := strings.CutPrefix(r.URL.Path, place); ok && files[name] != nil {
				_, _ = w.Write(files[name])
				return
			}
		}
		http.NotFound(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func checksums(files map[string][]byte) []byte {
	var lines bytes.Buffer
	for name, content := range files {
		sum := sha256.Sum256(content)
		lines.WriteString(hex.EncodeToString(sum[:]) + "  " + name + "\n")
	}
	return lines.Bytes()
}

// install runs the script as `curl ... | sh` does.
func install(t *testing.T, environment ...string) (output string, err error) {
	t.Helper()
	script, err := os.Open("../install.sh")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = script.Close() }()
	command := exec.CommandContext(t.Context(), "sh")
	command.Stdin = script
	command.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TMPDIR=" + t.TempDir()}, environment...)
	told, err := command.CombinedOutput()
	left, globErr := filepath.Glob(strings.TrimPrefix(command.Env[1], "TMPDIR=") + "/*")
	if globErr != nil || len(left) > 0 {
		t.Errorf("the script leaves %q behind, %v", left, globErr)
	}
	return string(told), err
}

func TestTheScriptInstallsWhatItsChecksumIsOf(t *testing.T) {
	t.Parallel()
	name := "spillway_" + runtime.GOOS + "_" + runtime.GOARCH
	whole := archive(t, name, "v1.2.3")
	good := map[string][]byte{name + ".tar.gz": whole}
	good["checksums.txt"] = checksums(good)
	changed := map[string][]byte{name + ".tar.gz": archive(t, name, "v6.6.6"), "checksums.txt": good["checksums.txt"]}
	without := map[string][]byte{name + ".tar.gz": whole, "checksums.txt": []byte("00  other.tar.gz\n")}
	cut := map[string][]byte{name + ".tar.gz": whole[:len(whole)/2], "checksums.txt": good["checksums.txt"]}
	for title, test := range map[string]struct {
		files       map[string][]byte
		environment []string
		want        string // of what it tells
		fails       bool
	}{
		"the latest":               {good, nil, "installed spillway v1.2.3 into ", false},
		"a release by its name":    {good, []string{"SPILLWAY_VERSION=v1.2.3"}, "/download/v1.2.3/", false},
		"no such release":          {good, []string{"SPILLWAY_VERSION=v9.9.9"}, "look whether there is such a release", true},
		"an archive of another":    {changed, nil, "the checksum of " + name + ".tar.gz is ", true},
		"half an archive":          {cut, nil, "the checksum of ", true},
		"no checksum":              {without, nil, "checksums.txt of this release has no " + name, true},
		"a variant that is none":   {good, []string{"SPILLWAY_VARIANT=fast"}, "SPILLWAY_VARIANT is fast", true},
		"a variant that it has no": {good, []string{"SPILLWAY_VARIANT=gpu"}, "hint: ", true},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			directory := filepath.Join(t.TempDir(), "bin")
			output, err := install(t, append(test.environment, "SPILLWAY_INSTALL_DIR="+directory,
				"SPILLWAY_RELEASES="+releases(t, test.files))...)
			if (err != nil) != test.fails || !strings.Contains(output, test.want) {
				t.Fatalf("got %v, want %q: %s", err, test.want, output)
			}
			installed, globErr := filepath.Glob(directory + "/*")
			if globErr != nil || (len(installed) == 3) == test.fails {
				t.Errorf("it installs %q, %v", installed, globErr)
			}
		})
	}
}

func TestTheScriptReplacesAnEarlierOne(t *testing.T) {
	t.Parallel()
	name, directory := "spillway_"+runtime.GOOS+"_"+runtime.GOARCH, t.TempDir()
	for _, version := range []string{"v1.0.0", "v1.1.0"} {
		files := map[string][]byte{name + ".tar.gz": archive(t, name, version)}
		files["checksums.txt"] = checksums(files)
		output, err := install(t, "SPILLWAY_INSTALL_DIR="+directory, "SPILLWAY_RELEASES="+releases(t, files))
		if err != nil || !strings.Contains(output, "installed spillway "+version) {
			t.Fatalf("got %v: %s", err, output)
		}
	}
	entries, err := os.ReadDir(directory)
	if err != nil || len(entries) != 3 {
		t.Errorf("it leaves %v, %v", entries, err)
	}
}

func TestTheScriptLeavesAnEarlierOneWhereTheNewOneDoesNotStart(t *testing.T) {
	t.Parallel()
	name, directory := "spillway_"+runtime.GOOS+"_"+runtime.GOARCH, t.TempDir()
	for _, version := range []string{"v1.0.0", "; exit 1"} { // which says nothing, and fails
		files := map[string][]byte{name + ".tar.gz": archive(t, name, version)}
		files["checksums.txt"] = checksums(files)
		output, err := install(t, "SPILLWAY_INSTALL_DIR="+directory, "SPILLWAY_RELEASES="+releases(t, files))
		if fails := version != "v1.0.0"; (err != nil) != fails || fails && !strings.Contains(output, "does not start here") {
			t.Fatalf("version %q: got %v: %s", version, err, output)
		}
	}
	said, err := exec.CommandContext(t.Context(), filepath.Join(directory, "spillway")).Output()
	if err != nil || string(said) != "spillway v1.0.0\n" {
		t.Errorf("the earlier one says %q, %v", said, err)
	}
	entries, err := os.ReadDir(directory)
	if err != nil || len(entries) != 3 {
		t.Errorf("it leaves %v, %v", entries, err)
	}
}
