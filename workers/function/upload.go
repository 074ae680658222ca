package function

import (
	"archive/zip"
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"
)

// maxFieldBytes bounds a request without its zip.
const maxFieldBytes = 256 << 10

// Errors of extractZip that are not the reader's.
var (
	errFieldsTooLong = fmt.Errorf("the request holds more than %d bytes beside its zip", maxFieldBytes)
	errSyntax        = errors.New("the request is not JSON with the zip in base64")
)

// upload is a zip that has arrived, on disk.
type upload struct {
	path   string
	sha256 string // hex
	bytes  int64
}

// receiveUpload reads the body of CreateFunction or UpdateFunctionCode. The zip, which may have 50 MB, goes to a
// temporary file as it arrives and is never in memory as a whole; fields is the JSON around it. The caller removes the
// file, after an error too.
func (s *store) receiveUpload(body io.Reader) (u upload, fields []byte, err error) {
	f, err := s.tempFile()
	if err != nil {
		return u, nil, fmt.Errorf("receive a zip: %w", err)
	}
	sum := sha256.New()
	fields, u.bytes, err = extractZip(body, io.MultiWriter(f, sum))
	u.path, u.sha256 = f.Name(), hex.EncodeToString(sum.Sum(nil))
	return u, fields, errors.Join(err, f.Close())
}

// extractZip copies a JSON object from r, except the value of its field ZipFile, or of the field ZipFile in its
// field Code, which it decodes from base64 to dst and replaces by "". It does not check the JSON otherwise.
func extractZip(r io.Reader, dst io.Writer) (fields []byte, zipBytes int64, err error) {
	x := extractor{in: bufio.NewReaderSize(r, 64<<10), dst: dst}
	for {
		err := x.step()
		switch {
		case errors.Is(err, io.EOF) && x.depth == 0:
			return x.out.Bytes(), x.zipBytes, nil
		case errors.Is(err, io.EOF):
			return nil, 0, fmt.Errorf("%w: it ends too early", errSyntax)
		case err != nil:
			return nil, 0, err
		case x.out.Len() > maxFieldBytes:
			return nil, 0, errFieldsTooLong
		}
	}
}

// extractor is the state of extractZip. A string is a key if a colon follows it.
type extractor struct {
	in       *bufio.Reader
	out      bytes.Buffer
	dst      io.Writer
	zipBytes int64
	depth    int    // of objects and arrays around the reader
	last     string // the string read last
	section  string // the key of the object at depth 2
	value    bool   // a colon was read last: what comes is the value of key last
}

// step copies one token or one byte of white space.
func (x *extractor) step() error {
	c, err := x.in.ReadByte()
	if err != nil {
		return err
	}
	switch c {
	case '{', '[':
		if x.depth == 1 && x.value {
			x.section = x.last
		}
		x.depth++
		x.value = false
	case '}', ']':
		if x.depth--; x.depth < 0 {
			return fmt.Errorf("%w: it closes what it did not open", errSyntax)
		}
	case ':':
		x.value = true
	case ',':
		x.value = false
	case '"':
		return x.text()
	}
	return x.out.WriteByte(c)
}

// text copies a string whose quote has been read, or decodes it if it is the zip.
func (x *extractor) text() error {
	s := &stringReader{in: x.in}
	if x.value && x.last == "ZipFile" && (x.depth == 1 || x.depth == 2 && x.section == "Code") {
		n, err := io.Copy(x.dst, base64.NewDecoder(base64.StdEncoding, s))
		x.zipBytes += n
		if corrupt := base64.CorruptInputError(0); errors.As(err, &corrupt) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("%w: %w", errSyntax, err)
		} else if err != nil {
			return err
		}
		x.out.WriteString(`""`)
		return nil
	}
	s.raw = &x.out
	x.out.WriteByte('"')
	b, err := io.ReadAll(io.LimitReader(s, maxFieldBytes+1))
	if err != nil {
		return err
	}
	if len(b) > maxFieldBytes {
		return errFieldsTooLong
	}
	x.out.WriteByte('"')
	x.last = string(b)
	return nil
}

// stringReader reads the contents of a JSON string up to its closing quote, with the escapes that base64 can need
// resolved. With raw it copies the string as it stands there and keeps other escapes as they are.
type stringReader struct {
	in   *bufio.Reader
	raw  *bytes.Buffer
	done bool
}

// Read implements io.Reader.
func (s *stringReader) Read(p []byte) (int, error) {
	if s.done {
		return 0, io.EOF
	}
	if len(p) == 0 {
		return 0, nil
	}
	if _, err := s.in.Peek(1); err != nil {
		return 0, unexpectedEnd(err)
	}
	chunk, err := s.in.Peek(min(s.in.Buffered(), len(p)))
	if err != nil {
		return 0, err
	}
	if i := bytes.IndexAny(chunk, `"\`); i >= 0 {
		chunk = chunk[:i]
	}
	if len(chunk) == 0 {
		return s.special(p)
	}
	n := copy(p, chunk)
	if s.raw != nil {
		s.raw.Write(chunk)
	}
	_, err = s.in.Discard(n)
	return n, err
}

// special reads the closing quote or an escape.
func (s *stringReader) special(p []byte) (int, error) {
	c, err := s.in.ReadByte()
	if err != nil {
		return 0, unexpectedEnd(err)
	}
	if c == '"' {
		s.done = true
		return 0, io.EOF
	}
	escape := make([]byte, 2, 6)
	escape[0] = c
	if escape[1], err = s.in.ReadByte(); err != nil {
		return 0, unexpectedEnd(err)
	}
	if escape[1] == 'u' {
		escape = escape[:6]
		if _, err := io.ReadFull(s.in, escape[2:]); err != nil {
			return 0, unexpectedEnd(err)
		}
	}
	if s.raw != nil {
		s.raw.Write(escape)
	}
	p[0] = unescape(escape)
	return 1, nil
}

// unescape returns the byte that a JSON escape stands for; 0, which base64 and the keys we know do not contain, for
// one beyond ASCII.
func unescape(escape []byte) byte {
	switch escape[1] {
	case 'u':
		if n, err := strconv.ParseUint(string(escape[2:]), 16, 7); err == nil {
			return byte(n)
		}
		return 0
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	default:
		return escape[1]
	}
}

func unexpectedEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: a string does not end", errSyntax)
	}
	return err
}

// unzip extracts the zip in file into dir. Nothing outside dir is written, whatever names the zip holds.
func unzip(file, dir string) error {
	archive, err := zip.OpenReader(file)
	if err != nil {
		return fmt.Errorf("open the zip: %w", err)
	}
	defer func() { _ = archive.Close() }()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("unzip: %w", err)
	}
	defer func() { _ = root.Close() }()
	if err := checkArchive(archive.File); err != nil {
		return err
	}
	left := int64(maxUnzippedBytes)
	for _, f := range archive.File {
		n, err := extract(root, f, left)
		if err != nil {
			return fmt.Errorf("unzip %.200q: %w", f.Name, err)
		}
		left -= n
	}
	return nil
}

// checkArchive refuses, before anything of it is written, a zip of too many files and directories, those that it only
// implies included, of too deep ones, and of more bytes than it may hold by its own account.
func checkArchive(files []*zip.File) error {
	var total uint64
	entries := make(map[string]struct{})
	for _, f := range files {
		if total += f.UncompressedSize64; total > maxUnzippedBytes || f.UncompressedSize64 > maxUnzippedBytes {
			return errUnzippedTooLarge()
		}
		name := path.Clean(f.Name)
		if depth := strings.Count(name, "/"); depth > maxUnzippedDepth {
			return fmt.Errorf("%.200q lies in %d directories; at most %d can be deployed", f.Name, depth, maxUnzippedDepth)
		}
		for ; name != "." && name != "/"; name = path.Dir(name) {
			if _, known := entries[name]; known {
				break
			}
			if entries[name] = struct{}{}; len(entries) > maxUnzippedFiles {
				return fmt.Errorf("it has more than %d files and directories, the most that can be deployed: "+
					"leave out what the bootstrap does not need", maxUnzippedFiles)
			}
		}
	}
	return nil
}

func errUnzippedTooLarge() error {
	return fmt.Errorf("unzipped size must be smaller than %d bytes", maxUnzippedBytes)
}

// makeDirs makes a directory and those that it lies in, so that functions of another user can enter them.
func makeDirs(root *os.Root, name string) error {
	if err := root.MkdirAll(name, 0o755); err != nil {
		return err
	}
	for name = path.Clean(name); name != "."; name = path.Dir(name) {
		if err := root.Chmod(name, 0o755); err != nil {
			return err
		}
	}
	return nil
}

// extract writes one file of a zip and returns its size, at most limit bytes.
func extract(root *os.Root, file *zip.File, limit int64) (n int64, err error) {
	mode := file.Mode()
	if mode.IsDir() {
		return 0, makeDirs(root, file.Name)
	}
	if !mode.IsRegular() {
		return 0, errors.New("only regular files and directories can be deployed")
	}
	if parent := path.Dir(file.Name); parent != "." {
		if err := makeDirs(root, parent); err != nil {
			return 0, err
		}
	}
	in, err := file.Open()
	if err != nil {
		return 0, err
	}
	defer func() { _ = in.Close() }()
	permissions := mode.Perm()&^0o222 | 0o600
	out, err := root.OpenFile(file.Name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, permissions)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if err := out.Chmod(permissions); err != nil { // as in the zip, whatever the umask: functions may run as another user
		return 0, err
	}
	n, err = io.Copy(out, io.LimitReader(in, limit+1))
	if err != nil {
		return n, err
	}
	if n > limit {
		return n, errUnzippedTooLarge()
	}
	return n, out.Sync()
}
