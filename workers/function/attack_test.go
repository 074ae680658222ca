package function

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestAttackWhoDoesNotKnowItsPathGetsNothingFromARuntimeAPI(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", fields{"Timeout": 60})
	first := l.run(t, "f", order{})
	address, secret, _ := strings.Cut(l.runtimeAPI(t, "f"), "/")
	const version = "/2018-06-01/runtime/"
	for _, tt := range []struct {
		name   string
		method string
		path   string
		header []string
		status int
	}{
		{"the next invocation", http.MethodGet, version + "invocation/next", nil, 404},
		{
			"the next invocation, by another path", http.MethodGet, "/" + strings.Repeat("A", 26) + version + "invocation/next",
			nil, 404,
		},
		{
			"the next invocation, by part of the path", http.MethodGet,
			"/" + secret[:max(len(secret), 1)-1] + version + "invocation/next", nil, 404,
		},
		{"an answer", http.MethodPost, version + "invocation/1/response", nil, 404},
		{"an error", http.MethodPost, version + "invocation/1/error", nil, 404},
		{"the end of its init", http.MethodPost, version + "init/error", nil, 404},
		{
			"the next invocation, as a rebound page", http.MethodGet, "/" + secret + version + "invocation/next",
			[]string{"Host", "evil.example"},
			403,
		},
		{
			"the next invocation, as a page", http.MethodGet, "/" + secret + version + "invocation/next",
			[]string{"Origin", "http://" + address},
			403,
		},
		{
			"the next invocation, as a page's image", http.MethodGet, "/" + secret + version + "invocation/next",
			[]string{"Sec-Fetch-Site", "cross-site"},
			403,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// A thief waits for an invocation that it never gets; the limit ends the test where it does.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			req, err := http.NewRequestWithContext(ctx, tt.method, "http://"+address+tt.path, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			for i := 0; i < len(tt.header); i += 2 {
				if req.Header.Set(tt.header[i], tt.header[i+1]); tt.header[i] == "Host" {
					req.Host = tt.header[i+1]
				}
			}
			if got := l.send(t, req); got.status != tt.status {
				t.Errorf("got %d %s, want %d", got.status, got.body, tt.status)
			}
		})
	}
	if again := l.run(t, "f", order{}); again.PID != first.PID {
		t.Errorf("got process %d after the attacks, want %d still", again.PID, first.PID)
	}
}

func TestAttackOnlyWhoKnowsTheKeyGetsAnythingFromAHost(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	l.deploy(t, "f", nil)
	body := []byte(`{"op":"print","n":1}`)
	good := func(req *http.Request) { sign(t, req, body, AccessKeyID, testSecret, time.Now()) }
	claimed := func(req *http.Request) { // as who signs the digest as a header
		req.Header.Set(hashHeader, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855")
		sign(t, req, nil, AccessKeyID, testSecret, time.Now())
	}
	for _, tt := range []struct {
		name string
		sign func(req *http.Request) // and change what was signed
		code string
		says string
	}{
		{"nothing", func(*http.Request) {}, "MissingAuthenticationTokenException", "sign the request"},
		{"what begins like a signature", func(r *http.Request) {
			r.Header.Set("Authorization", "AWS4-x")
		}, "MissingAuthenticationTokenException", "sign the request"},
		{"no signature", func(r *http.Request) {
			r.Header.Set("Authorization", algorithm+" Credential=test")
		}, "IncompleteSignatureException", "64 hexadecimal digits"},
		{"another key", func(r *http.Request) {
			sign(t, r, body, "local", "local", time.Now())
		}, "UnrecognizedClientException", "not the key of this function host"},
		{"another secret", func(r *http.Request) {
			sign(t, r, body, AccessKeyID, "local", time.Now())
		}, "InvalidSignatureException", "does not match"},
		{"another body", func(r *http.Request) {
			sign(t, r, []byte("{}"), AccessKeyID, testSecret, time.Now())
		}, "InvalidSignatureException", "does not match"},
		{"another body than the digest that it signs", claimed, "InvalidSignatureException", "does not match"},
		{"no digest", func(r *http.Request) {
			r.Header.Set(hashHeader, "UNSIGNED-PAYLOAD")
			good(r)
		}, "InvalidSignatureException", "does not match"},
		{"another path", func(r *http.Request) {
			good(r)
			r.URL.Path = strings.Replace(r.URL.Path, "/f/", "/g/", 1)
		}, "InvalidSignatureException", "does not match"},
		{"another query", func(r *http.Request) {
			good(r)
			r.URL.RawQuery = "Qualifier=7"
		}, "InvalidSignatureException", "does not match"},
		{"another method", func(r *http.Request) {
			good(r)
			r.Method = http.MethodPut
		}, "InvalidSignatureException", "does not match"},
		{"a header added", func(r *http.Request) {
			good(r)
			r.Header.Set("X-Amz-Invocation-Type", "Event")
		}, "IncompleteSignatureException", "x-amz-invocation-type"},
		{"a header changed", func(r *http.Request) {
			r.Header.Set("X-Amz-Invocation-Type", "DryRun")
			good(r)
			r.Header.Set("X-Amz-Invocation-Type", "Event")
		}, "InvalidSignatureException", "does not match"},
		{"the day before", func(r *http.Request) {
			sign(t, r, body, AccessKeyID, testSecret, time.Now().Add(-24*time.Hour))
		}, "InvalidSignatureException", "Signature expired"},
		{"a clock 16 minutes behind", func(r *http.Request) {
			sign(t, r, body, AccessKeyID, testSecret, time.Now().Add(-16*time.Minute))
		}, "InvalidSignatureException", "set the clock"},
		{"a clock 16 minutes ahead", func(r *http.Request) {
			sign(t, r, body, AccessKeyID, testSecret, time.Now().Add(16*time.Minute))
		}, "InvalidSignatureException", "not yet current"},
		{"an old signature with a new date", func(r *http.Request) {
			sign(t, r, body, AccessKeyID, testSecret, time.Now().Add(-time.Hour))
			r.Header.Set(dateHeader, time.Now().UTC().Format(timeLayout))
		}, "", ""},
		{"a page's origin", func(r *http.Request) {
			r.Header.Set("Origin", "https://example.com")
			good(r)
		}, "AccessDeniedException", "pages of"},
		{"a page's fetch", func(r *http.Request) {
			r.Header.Set("Sec-Fetch-Site", "cross-site")
			good(r)
		}, "AccessDeniedException", "pages of"},
		{"another host's name", func(r *http.Request) {
			r.Host = "rebound.example:" + r.URL.Port()
			good(r)
		}, "AccessDeniedException", "this machine only"},
		{"another port", func(r *http.Request) {
			r.Host = "127.0.0.1:1"
			good(r)
		}, "AccessDeniedException", "this machine only"},
		{"no port", func(r *http.Request) { r.Host = "localhost"; good(r) }, "AccessDeniedException", "this machine only"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url+"/2015-03-31/functions/f/invocations",
				bytes.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			tt.sign(req)
			got := l.send(t, req)
			if got.status != http.StatusForbidden || tt.code != "" && got.code() != tt.code ||
				!strings.Contains(got.body, tt.says) || strings.Contains(got.body, testSecret) {
				t.Errorf("got %d %s %s, want 403 %s with %q", got.status, got.code(), got.body, tt.code, tt.says)
			}
		})
	}
	for method, path := range map[string]string{
		http.MethodGet: "/2015-03-31/functions", http.MethodDelete: "/2015-03-31/functions/f",
		http.MethodPut:  "/2015-03-31/functions/f/configuration",
		http.MethodPost: "/2015-03-31/functions", http.MethodPatch: "/nothing",
	} {
		req, err := http.NewRequestWithContext(t.Context(), method, l.url+path, strings.NewReader(`{"FunctionName":"g"}`))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "AWS4-x")
		if got := l.send(t, req); got.status != http.StatusForbidden {
			t.Errorf("%s %s without a signature: got %d %s, want 403", method, path, got.status, got.body)
		}
	}
	t.Cleanup(func() { // after the subtests
		if diff := cmp.Diff([]FunctionStats{{Function: "f"}}, l.Stats()); diff != "" {
			t.Errorf("functions after the attacks (-want +got):\n%s", diff)
		}
		l.leavesNothing(t)
	})
}

func TestAttackAnUploadOfAStrangerLeavesNothing(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{})
	body, err := json.Marshal(fields{
		"FunctionName": "evil", "Runtime": "provided.al2023",
		"Code": fields{"ZipFile": script(t)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, signed := range map[string][]byte{
		"of another secret":      nil,
		"whose body was changed": append([]byte(" "), body...),
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, l.url+"/2015-03-31/functions",
			bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		secret := testSecret
		if signed == nil {
			signed, secret = body, "guessed"
		}
		sign(t, req, signed, AccessKeyID, secret, time.Now())
		if got := l.send(t, req); got.code() != "InvalidSignatureException" {
			t.Errorf("an upload %s: got %d %s, want it refused", name, got.status, got.body)
		}
	}
	if got := len(l.Stats()); got != 0 {
		t.Errorf("got %d functions, want none", got)
	}
	l.leavesNothing(t)
}

func TestAttackBodiesThatStopHalfwayEnd(t *testing.T) {
	t.Parallel()
	l := newLocal(t, Options{patience: time.Second})
	l.deploy(t, "f", nil)
	api := l.runtimeAPI(t, "f")
	runtime, _, _ := strings.Cut(api, "/")
	host := strings.TrimPrefix(l.url, "http://")
	got := make(map[string]int) // how many connections got each answer
	var connections []net.Conn
	for range maxUnproven { // more in all than may arrive at a time
		for _, path := range []string{"/2015-03-31/functions", "/2015-03-31/functions/f/invocations", "/nothing"} {
			connections = append(connections, l.begin(t, host, path, true))
		}
		connections = append(connections, l.begin(t, host, "/2015-03-31/functions", false),
			l.begin(t, runtime, "/2018-06-01/runtime/init/error", false))
	}
	for _, connection := range connections {
		answer, err := io.ReadAll(connection) // ends when the host hangs up
		if err != nil {
			t.Errorf("a connection whose body stopped: %v", err)
		}
		status, _, _ := strings.Cut(strings.TrimPrefix(string(answer), "HTTP/1.1 "), " ")
		got[status]++
	}
	if got["408"] < maxUnproven || got["408"]+got["503"] != 3*maxUnproven || got["403"] != maxUnproven ||
		got["404"] != maxUnproven {
		t.Errorf("got answers %v, want 408 for what began well, or 503 where too many did, 403 for what did not, and 404 "+
			"from the runtime", got)
	}
	l.run(t, "f", order{})
	l.leavesNoUploads(t)
}

// begin sends the head of a request and the beginning of its body.
func (l local) begin(t *testing.T, address, path string, signed bool) net.Conn {
	t.Helper()
	connection, err := new(net.Dialer).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() })
	header := ""
	if signed {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		sign(t, req, nil, AccessKeyID, "guessed", time.Now())
		header = fmt.Sprintf("Authorization: %s\r\n%s: %s\r\n", req.Header.Get("Authorization"), dateHeader,
			req.Header.Get(dateHeader))
	}
	if _, err := fmt.Fprintf(connection, "POST %s HTTP/1.1\r\nHost: %s\r\n%sContent-Length: 1000\r\n\r\n{\"Code\":", path,
		address, header); err != nil {
		t.Fatal(err)
	}
	return connection
}

// runtimeAPI returns where the environment of a function finds its Runtime API.
func (l local) runtimeAPI(t *testing.T, name string) string {
	t.Helper()
	for _, variable := range l.run(t, name, order{Op: "env"}).Env {
		if value, found := strings.CutPrefix(variable, "AWS_LAMBDA_RUNTIME_API="); found {
			return value
		}
	}
	t.Fatal("the environment does not know its Runtime API")
	return ""
}

// leavesNoUploads checks that no part of an upload is left.
func (l local) leavesNoUploads(t *testing.T) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(l.store.temp(), "[fc]*")); err != nil || len(left) != 0 {
		t.Errorf("uploads: got %v, %v, want none", left, err)
	}
}

func TestAttackAnArchiveOfTooMuchIsRefusedBeforeAnyOfItIsWritten(t *testing.T) {
	t.Parallel()
	many := func(n int, name func(i int) string) func(z *zip.Writer) error {
		return func(z *zip.Writer) error {
			for i := range n {
				if _, err := z.Create(name(i)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	for _, tt := range []struct {
		name string
		fill func(z *zip.Writer) error
		want string
	}{
		{"the most files", many(maxUnzippedFiles, strconv.Itoa), ""},
		{"one file more", many(maxUnzippedFiles+1, strconv.Itoa), "more than 10000 files and directories"},
		{"too many directories", many(maxUnzippedFiles+1, func(i int) string {
			return fmt.Sprint(i, "/")
		}), "more than 10000 files and directories"},
		{"too many directories that it only implies", many(maxUnzippedFiles/2+1, func(i int) string {
			return fmt.Sprint(i, "/file")
		}), "more than 10000 files and directories"},
		{"too deep a file", many(1, func(int) string {
			return strings.Repeat("d/", maxUnzippedDepth+1) + "file"
		}), "at most 64"},
		{"a bomb", func(z *zip.Writer) error {
			_, err := z.CreateRaw(&zip.FileHeader{Name: "bomb", Method: zip.Deflate, UncompressedSize64: maxUnzippedBytes + 1})
			return err
		}, "smaller than 262144000 bytes"},
		{"a bomb that lies about its size", func(z *zip.Writer) error {
			w, err := z.CreateRaw(&zip.FileHeader{
				Name: "bomb", Method: zip.Deflate, UncompressedSize64: 10,
				CompressedSize64: 5,
			})
			if err == nil {
				_, err = w.Write([]byte{0, 0, 0, 0, 0})
			}
			return err
		}, "unzip \"bomb\""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			var b bytes.Buffer
			z := zip.NewWriter(&b)
			if err := errors.Join(tt.fill(z), z.Close()); err != nil {
				t.Fatal(err)
			}
			var err error
			if tt.want == "" {
				archive, openErr := zip.NewReader(bytes.NewReader(b.Bytes()), int64(b.Len()))
				if openErr != nil {
					t.Fatal(openErr)
				}
				err = checkArchive(archive.File) // to write so many takes seconds
			} else {
				err = unzip(b.Bytes(), dir)
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}
