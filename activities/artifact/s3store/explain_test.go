package s3store_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/activities/artifact/s3store/s3test"
)

func TestWhatIsWrongWithABucketIsNamed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer s3test.Answer
		want   error
		says   string
	}{
		"no bucket": {s3test.Answer{Status: http.StatusNotFound, Code: "NoSuchBucket"}, s3store.ErrNoBucket, "create it"},
		"another region": {
			s3test.Answer{
				Status: http.StatusMovedPermanently, Code: "PermanentRedirect",
				Headers: map[string]string{"x-amz-bucket-region": "eu-central-1"},
			},
			s3store.ErrRegion, "write region=eu-central-1",
		},
		"signed for another region": {
			s3test.Answer{
				Status: http.StatusBadRequest, Code: "AuthorizationHeaderMalformed",
				Headers: map[string]string{"x-amz-bucket-region": "eu-central-1"},
			},
			s3store.ErrRegion, "write region=eu-central-1",
		},
		"no rights": {
			s3test.Answer{Status: http.StatusForbidden, Code: "AccessDenied"},
			s3store.ErrForbidden, "s3:PutObject",
		},
		"an unknown key": {
			s3test.Answer{Status: http.StatusForbidden, Code: "InvalidAccessKeyId"},
			s3store.ErrCredentials,
			"AWS_ACCESS_KEY_ID",
		},
		"a wrong secret": {
			s3test.Answer{Status: http.StatusForbidden, Code: "SignatureDoesNotMatch"},
			s3store.ErrCredentials,
			"AWS_SECRET_ACCESS_KEY",
		},
		"credentials of yesterday": {
			s3test.Answer{Status: http.StatusBadRequest, Code: "ExpiredToken"},
			s3store.ErrCredentials, "a role",
		},
		"a clock that is wrong": {
			s3test.Answer{Status: http.StatusForbidden, Code: "RequestTimeTooSkewed"},
			s3store.ErrClock,
			"set the clock",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newServer(t)
			server.Fail(func(*http.Request) *s3test.Answer { return &c.answer })
			store := server.store(t)
			_, claimed := store.Claim(t.Context(), "me")
			_, put := store.Put(t.Context(), strings.NewReader("a"))
			for name, err := range map[string]error{
				"Claim": claimed, "Put": put,
				"List": store.List(t.Context(), nil), "RestoreAll": store.RestoreAll(t.Context()),
			} {
				if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
					t.Errorf("%s: %v, want %v and %q", name, err, c.want, c.says)
				}
			}
		})
	}
}

// TestTheLeastRightThatLacksIsNamedAtTheStart takes one right after another.
func TestTheLeastRightThatLacksIsNamedAtTheStart(t *testing.T) {
	t.Parallel()
	for name, denied := range map[string]func(*http.Request) bool{
		"s3:ListBucket":   func(r *http.Request) bool { return r.URL.Query().Has("list-type") },
		"s3:PutObject":    func(r *http.Request) bool { return r.Method == http.MethodPut },
		"s3:DeleteObject": func(r *http.Request) bool { return r.Method == http.MethodDelete },
	} {
		server := newServer(t)
		server.Fail(func(r *http.Request) *s3test.Answer {
			if denied(r) {
				return &s3test.Answer{Status: http.StatusForbidden, Code: "AccessDenied"}
			}
			return nil
		})
		_, err := server.store(t).Claim(t.Context(), "me")
		if !errors.Is(err, s3store.ErrForbidden) || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// TestAServerThatIsNoS3IsNotTakenForOne has one that says of everything that it went well.
func TestAServerThatIsNoS3IsNotTakenForOne(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "<html><body>welcome</body></html>")
	})
	_, err := server.store(t).Claim(t.Context(), "me")
	if !errors.Is(err, s3store.ErrServer) || !strings.Contains(err.Error(), "look whether the endpoint is right") {
		t.Errorf("Claim: %v, want %v", err, s3store.ErrServer)
	}
}

// noCredentials is a chain that finds nothing.
type noCredentials struct{}

// Retrieve implements aws.CredentialsProvider.
func (noCredentials) Retrieve(context.Context) (aws.Credentials, error) {
	return aws.Credentials{}, errors.New("no role found")
}

func TestMissingCredentialsAreNamed(t *testing.T) {
	t.Parallel()
	store := newServer(t).store(t, func(_ *s3store.Location, o *s3store.Options) { o.Credentials = noCredentials{} })
	_, err := store.Claim(t.Context(), "me")
	if !errors.Is(err, s3store.ErrCredentials) || !strings.Contains(err.Error(), "AWS_PROFILE") {
		t.Errorf("Claim: %v", err)
	}
}

// TestAnEndpointThatHangsIsToldWithinABound has endpoints that say nothing: one takes connections and what is sent,
// one takes only so much of it, one begins an answer, and at one nobody listens.
func TestAnEndpointThatHangsIsToldWithinABound(t *testing.T) {
	t.Parallel()
	hang := func(begin string, read bool) string {
		listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		go func() {
			for {
				connection, err := listener.Accept()
				if err != nil {
					return
				}
				t.Cleanup(func() { _ = connection.Close() })
				_, _ = io.WriteString(connection, begin)
				if read {
					go func() { _, _ = io.Copy(io.Discard, connection) }()
				}
			}
		}()
		return "http://" + listener.Addr().String()
	}
	gone := hang("", false)
	for name, endpoint := range map[string]string{
		"says nothing": hang("", true), "reads nothing": hang("", false),
		"begins to answer": hang("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n<", true),
		"is not there":     strings.Replace(gone, "127.0.0.1", "127.0.0.2", 1),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := s3store.New(
				s3store.Location{Bucket: bucket, Region: "us-east-1", Endpoint: endpoint},
				s3store.Options{Spool: t.TempDir(), Patience: 100 * time.Millisecond},
			)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 2)
			go func() {
				_, err := store.Claim(t.Context(), "me")
				ended <- err
			}()
			go func() { // more than what the sockets hold
				_, err := store.Put(t.Context(), strings.NewReader(strings.Repeat("h", 8<<20)))
				ended <- err
			}()
			for range 2 {
				err := <-ended // the test hangs where the store does
				if name == "begins to answer" && err != nil {
					continue // an answer that ends is not understood, whatever it is taken for
				}
				if !errors.Is(err, s3store.ErrUnreachable) || !strings.Contains(err.Error(), endpoint) {
					t.Errorf("%v, want %v of %s", err, s3store.ErrUnreachable, endpoint)
				}
			}
		})
	}
}

// TestAReadingThatBreaksGoesOn has connections end in the middle of an object.
func TestAReadingThatBreaksGoesOn(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	data := strings.Repeat("0123456789", 1<<17)
	ref, err := server.store(t).Put(t.Context(), strings.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		breaks int64 // half an answer comes so often
		closes int64 // and then none so often
		want   error
	}{
		"twice": {2, 0, nil}, "again and again": {1 << 30, 0, io.ErrUnexpectedEOF},
		"and no answer comes any more": {1, 1 << 30, io.EOF},
	} {
		var broken atomic.Int64
		proxy := newServer(t)
		proxy.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch n := broken.Add(1); {
			case r.Method != http.MethodGet:
			case n <= c.breaks:
				w = &half{ResponseWriter: w, left: 100_000}
			case n <= c.breaks+c.closes:
				panic(http.ErrAbortHandler)
			}
			server.ServeHTTP(w, r)
		})
		got, err := activities.ReadAll(t.Context(), proxy.store(t), ref.Digest)
		if !errors.Is(err, c.want) || errors.Is(err, activities.ErrCorrupt) || c.want == nil && string(got) != data {
			t.Errorf("%s: read %d of %d bytes, %v; want %v", name, len(got), len(data), err, c.want)
		}
	}
}

func TestALookThatBreaksGoesOn(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	message := strings.Repeat("message ", 40_000)
	if _, err := server.store(t).Post(t.Context(), "group", "name", []byte(message)); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	proxy := newServer(t)
	proxy.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked.Add(1) == 1 {
			w = &half{ResponseWriter: w, left: 100_000}
		}
		server.ServeHTTP(w, r)
	})
	got, err := proxy.store(t).Look(t.Context(), "group", "name")
	if err != nil || string(got) != message || asked.Load() != 2 {
		t.Errorf("%d of %d bytes after %d requests, %v", len(got), len(message), asked.Load(), err)
	}
}

// half breaks an answer off.
type half struct {
	http.ResponseWriter

	left int
}

// Write writes as long as there is something left.
func (h *half) Write(p []byte) (int, error) {
	n, err := h.ResponseWriter.Write(p[:min(len(p), h.left)])
	if h.left -= n; h.left == 0 {
		panic(http.ErrAbortHandler)
	}
	return n, err
}

// TestADeletionOfWhichNobodyKnowsKeepsItsWord has the answer to a deletion be lost: until the next start, who puts the
// same bytes stores them under another name.
func TestADeletionOfWhichNobodyKnowsKeepsItsWord(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	store := server.store(t)
	ref, err := store.Put(t.Context(), strings.NewReader("text"))
	if err != nil {
		t.Fatal(err)
	}
	if taken, err := store.Discard(t.Context(), ref.Digest, time.Now().Add(time.Minute)); !taken || err != nil {
		t.Fatal(taken, err)
	}
	var tries atomic.Int64
	server.Fail(func(r *http.Request) *s3test.Answer {
		if r.Method == http.MethodDelete && strings.HasSuffix(r.URL.Path, digestKey(ref.Digest)) {
			tries.Add(1)
			return &s3test.Answer{Status: http.StatusInternalServerError, Code: "InternalError"}
		}
		return nil
	})
	if gone, err := store.Delete(t.Context(), ref.Digest); gone || err == nil || tries.Load() != 1 {
		t.Errorf("Delete = %v, %v, tried %d times; want an error at the only try", gone, err, tries.Load())
	}
	if err := store.Restore(t.Context(), ref.Digest); err != nil {
		t.Fatal(err)
	}
	if _, err := server.store(t).Put(t.Context(), strings.NewReader("text")); err != nil {
		t.Fatal(err)
	}
	server.Remove(digestKey(ref.Digest)) // now it happens
	if got, err := activities.ReadAll(t.Context(), store, ref.Digest); err != nil || string(got) != "text" {
		t.Errorf("what was put since is lost: %q, %v", got, err)
	}
}

// TestAClockOfS3ThatIsBehindMakesNothingOlder: what was just written must not count as settled.
func TestAClockOfS3ThatIsBehindMakesNothingOlder(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	server.SetTime(time.Now().Add(-10 * time.Minute))
	store := server.store(t)
	if _, err := store.Claim(t.Context(), "me"); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Put(t.Context(), strings.NewReader("a")); err != nil {
		t.Fatal(err)
	}
	for _, info := range listed(t, store) {
		if age := time.Since(info.Written); age > time.Minute {
			t.Errorf("what was just put is %s old", age)
		}
	}
}

func TestObjectsAreEncryptedAsTheLocationSays(t *testing.T) {
	t.Parallel()
	server := newServer(t)
	var plain atomic.Int64
	server.Fail(func(r *http.Request) *s3test.Answer {
		begins := r.Method == http.MethodPut && !r.URL.Query().Has("partNumber") ||
			r.Method == http.MethodPost && r.URL.Query().Has("uploads")
		if begins && (r.Header.Get("X-Amz-Server-Side-Encryption") != "aws:kms" ||
			r.Header.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "k1") {
			plain.Add(1)
		}
		return nil
	})
	store := server.store(t, func(l *s3store.Location, _ *s3store.Options) { l.Encryption, l.KMSKey = "aws:kms", "k1" })
	if _, err := store.Claim(t.Context(), "me"); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{"small", "small", strings.Repeat("l", 9<<20)} {
		ref, err := store.Put(t.Context(), strings.NewReader(data))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(store.Pin(t.Context(), ref.Digest), store.Touch(t.Context(), ref.Digest)); err != nil {
			t.Fatal(err)
		}
	}
	if plain.Load() > 0 {
		t.Errorf("%d objects were not asked to be encrypted", plain.Load())
	}
}
