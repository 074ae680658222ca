package function

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// TestCodeCanBeReadByWhoeverMayEnterItsDirectory changes the umask of this process, and so runs beside no other test.
func TestCodeCanBeReadByWhoeverMayEnterItsDirectory(t *testing.T) { //nolint:paralleltest // see above
	before := syscall.Umask(0o077)
	defer syscall.Umask(before)
	parent := t.TempDir()
	dir, path := filepath.Join(parent, "code"), filepath.Join(parent, "zip")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(path, archive(t, 0o755, "a/b", "x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := unzip(path, dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "a/b"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: got %v, %v, want 0755", name, info.Mode(), err)
		}
	}
}

func TestAZipIsTakenOutOfTheRequestThatBringsIt(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		in     string
		fields string
		zip    string
		err    error
	}{
		{
			"in Code", `{"A": 1, "Code": {"ZipFile": "aGVsbG8="}, "B": [1]}`, `{"A": 1, "Code": {"ZipFile": ""}, "B": [1]}`,
			"hello", nil,
		},
		{"at the top", `{"ZipFile":"aGVsbG8="}`, `{"ZipFile":""}`, "hello", nil},
		{"with escapes", `{"ZipFile":"\u0061GVsbG8=\r\n"}`, `{"ZipFile":""}`, "hello", nil},
		{"with escaped slashes", `{"ZipFile":"\/\/\/\/"}`, `{"ZipFile":""}`, "\xff\xff\xff", nil},
		{"null", `{"ZipFile":null}`, `{"ZipFile":null}`, "", nil},
		{
			"not elsewhere", `{"Environment":{"Variables":{"ZipFile":"a\"b"}},"Tags":{"ZipFile":"x"}}`,
			`{"Environment":{"Variables":{"ZipFile":"a\"b"}},"Tags":{"ZipFile":"x"}}`, "", nil,
		},
		{"not as a value", `{"Code":"ZipFile","X":"aGVsbG8="}`, `{"Code":"ZipFile","X":"aGVsbG8="}`, "", nil},
		{"that is not base64", `{"ZipFile":"%"}`, "", "", errSyntax},
		{"whose base64 is cut", `{"ZipFile":"aGVsbG8"}`, "", "", errSyntax},
		{"whose string does not end", `{"ZipFile":"aGVs`, "", "", errSyntax},
		{"whose object does not end", `{"ZipFile":"aGVs"`, "", "", errSyntax},
		{"in too much else", `{"A":"` + strings.Repeat("x", maxFieldBytes) + `"}`, "", "", errFieldsTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var zip bytes.Buffer
			fields, n, err := extractZip(strings.NewReader(tt.in), &zip)
			if !errors.Is(err, tt.err) {
				t.Fatalf("got error %v, want %v", err, tt.err)
			}
			if err != nil {
				return
			}
			if string(fields) != tt.fields || zip.String() != tt.zip || n != int64(zip.Len()) {
				t.Errorf("got %s and %d bytes %q, want %s and %q", fields, n, zip.String(), tt.fields, tt.zip)
			}
		})
	}
}

func TestAnyZipComesOutAsItWentInAndTheRestStaysAsItWas(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		type request struct {
			Name      string
			Code      struct{ ZipFile []byte }
			Variables map[string]string
		}
		in := request{
			Name:      rapid.String().Draw(t, "name"),
			Variables: rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "variables"),
		}
		in.Code.ZipFile = rapid.SliceOfN(rapid.Byte(), 1, 200_000).Draw(t, "zip")
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var zip bytes.Buffer
		fields, _, err := extractZip(bytes.NewReader(b), &zip)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(zip.Bytes(), in.Code.ZipFile) {
			t.Error("the zip differs")
		}
		in.Code.ZipFile = []byte{}
		want, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(fields)); diff != "" {
			t.Errorf("fields (-want +got):\n%s", diff)
		}
	})
}

func TestAZipOfFiftyMegabytesNeverLiesInMemory(t *testing.T) {
	s, err := openStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	const zeros = 67 << 20 // in base64: 50 MB
	body := &pattern{prefix: `{"Code":{"ZipFile":"`, suffix: `"}}`, n: zeros}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	up, fields, err := s.receiveUpload(body)
	runtime.ReadMemStats(&after)
	if err != nil {
		t.Fatal(err)
	}
	if up.bytes != zeros/4*3 || string(fields) != `{"Code":{"ZipFile":""}}` {
		t.Errorf("got %d bytes and %s", up.bytes, fields)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 4<<20 {
		t.Errorf("allocated %d bytes, want far less than the zip", got)
	}
}

// pattern reads as prefix, n times the letter A, and suffix.
type pattern struct {
	prefix, suffix string
	n              int
}

func (p *pattern) Read(b []byte) (int, error) {
	if p.prefix != "" {
		n := copy(b, p.prefix)
		p.prefix = p.prefix[n:]
		return n, nil
	}
	if p.n > 0 {
		n := min(len(b), p.n)
		for i := range b[:n] {
			b[i] = 'A'
		}
		p.n -= n
		return n, nil
	}
	r := strings.NewReader(p.suffix)
	n, err := r.Read(b)
	p.suffix = p.suffix[n:]
	return n, err
}

func TestAZipIsUnzippedInItsDirectoryOnly(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		mode os.FileMode
		file string
		ok   bool
	}{
		{"a file below a directory", 0o755, "a/b", true},
		{"a file above", 0o755, "../b", false},
		{"a file at the root", 0o755, "/b", false},
		{"a link", os.ModeSymlink | 0o777, "b", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			parent := t.TempDir()
			dir := filepath.Join(parent, "code")
			path := filepath.Join(parent, "zip")
			if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(path, archive(t, tt.mode, tt.file, "x"), 0o600)); err !=
				nil {
				t.Fatal(err)
			}
			if err := unzip(path, dir); (err == nil) != tt.ok {
				t.Errorf("got error %v, want ok %v", err, tt.ok)
			}
			if tt.ok {
				info, err := os.Stat(filepath.Join(dir, tt.file))
				if err != nil || info.Mode().Perm() != 0o755 {
					t.Errorf("got %v, %v, want an executable file", info, err)
				}
			}
			entries, err := os.ReadDir(parent)
			if err != nil || len(entries) != 2 {
				t.Errorf("got %v beside the directory, %v", entries, err)
			}
		})
	}
}
