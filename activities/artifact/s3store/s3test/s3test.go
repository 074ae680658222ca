// Package s3test has a small S3 for tests.
package s3test

import (
	"cmp"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Bucket is the one bucket that there is.
const Bucket = "bucket"

// Server is what package s3store uses of S3, in memory: each request happens at one moment, and time is told in
// seconds. It is as strict as AWS is documented to be and knows nothing else; it looks at no credentials. Package
// s3check has a whole server.
type Server struct {
	*httptest.Server

	mu      sync.Mutex
	objects map[string]object         // guarded by mu, by key
	uploads map[string]map[int][]byte // guarded by mu, by ID
	last    int                       // guarded by mu: the last upload
	at      time.Time                 // guarded by mu: when it is; the zero time is now
	failing func(r *http.Request) *Answer
}

type object struct {
	data    []byte
	written time.Time
}

// Answer is an error that the server answers with.
type Answer struct {
	Status  int
	Code    string
	Headers map[string]string
}

// Start starts a server that ends with the test.
func Start(tb testing.TB) *Server {
	tb.Helper()
	s := &Server{objects: map[string]object{}, uploads: map[string]map[int][]byte{}}
	s.Server = httptest.NewServer(s)
	tb.Cleanup(s.Close)
	return s
}

// Fail has requests fail as failing says, which returns nil for those that do not; nil ends that.
func (s *Server) Fail(failing func(r *http.Request) *Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failing = failing
}

// SetTime has the server's clock stand still.
func (s *Server) SetTime(at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = at
}

// Keys are the keys of all objects.
func (s *Server) Keys() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys := make([]string, 0, len(s.objects))
	for key := range s.objects {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// Remove removes an object behind the store's back.
func (s *Server) Remove(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.objects, key)
}

// Change changes an object behind the store's back.
func (s *Server) Change(key string, how func(data []byte) []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.objects[key]
	s.objects[key] = object{how(slices.Clone(held.data)), held.written}
}

// Age makes an object so much older.
func (s *Server) Age(key string, by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := s.objects[key]
	s.objects[key] = object{held.data, held.written.Add(-by)}
}

// ServeHTTP answers a request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := cmp.Or(s.at, time.Now()).UTC().Truncate(time.Second)
	w.Header().Set("Date", now.Format(http.TimeFormat))
	if s.failing != nil {
		if failed := s.failing(r); failed != nil {
			for name, value := range failed.Headers {
				w.Header().Set(name, value)
			}
			fail(w, r, failed.Status, failed.Code)
			return
		}
	}
	key, inBucket := strings.CutPrefix(r.URL.Path, "/"+Bucket+"/")
	query := r.URL.Query()
	held, there := s.objects[key]
	switch {
	case r.Method == http.MethodGet && query.Get("list-type") == "2":
		s.list(w, query.Get("prefix"), query.Get("continuation-token"), query.Get("max-keys"))
	case r.Method == http.MethodGet && query.Has("uploads"):
		reply(w, struct {
			XMLName xml.Name `xml:"ListMultipartUploadsResult"`
		}{})
	case !inBucket:
		fail(w, r, http.StatusNotImplemented, "NotImplemented")
	case r.Method == http.MethodPut && query.Has("partNumber"):
		number, _ := strconv.Atoi(query.Get("partNumber"))
		parts := s.uploads[query.Get("uploadId")]
		if parts == nil {
			fail(w, r, http.StatusNotFound, "NoSuchUpload")
			return
		}
		parts[number] = plainBody(r, body)
		w.Header().Set("ETag", `"part"`)
	case r.Method == http.MethodPost && query.Has("uploads"):
		s.last++
		id := fmt.Sprint("upload-", s.last)
		s.uploads[id] = map[int][]byte{}
		reply(w, struct {
			XMLName  xml.Name `xml:"InitiateMultipartUploadResult"`
			UploadID string   `xml:"UploadId"`
		}{UploadID: id})
	case r.Method == http.MethodPost && query.Has("uploadId"):
		if there && r.Header.Get("If-None-Match") == "*" {
			fail(w, r, http.StatusPreconditionFailed, "PreconditionFailed")
			return
		}
		var all []byte
		parts := s.uploads[query.Get("uploadId")]
		for number := range len(parts) {
			all = append(all, parts[number+1]...)
		}
		s.objects[key] = object{all, now}
		delete(s.uploads, query.Get("uploadId"))
		reply(w, struct {
			XMLName xml.Name `xml:"CompleteMultipartUploadResult"`
		}{})
	case r.Method == http.MethodDelete && query.Has("uploadId"):
		delete(s.uploads, query.Get("uploadId"))
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPut && there && r.Header.Get("If-None-Match") == "*":
		fail(w, r, http.StatusPreconditionFailed, "PreconditionFailed")
	case r.Method == http.MethodPut:
		s.objects[key] = object{plainBody(r, body), now}
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	case !there:
		fail(w, r, http.StatusNotFound, "NoSuchKey")
	default: // GET and HEAD, with ranges
		http.ServeContent(w, r, "", held.written, strings.NewReader(string(held.data)))
	}
}

// plainBody takes the chunks out of a body that was signed while it was sent.
func plainBody(r *http.Request, body []byte) []byte {
	if !strings.Contains(r.Header.Get("Content-Encoding"), "aws-chunked") {
		return body
	}
	var plain []byte
	for {
		head, rest, _ := strings.Cut(string(body), "\r\n")
		digits, _, _ := strings.Cut(head, ";")
		size, err := strconv.ParseInt(digits, 16, 64)
		if err != nil || size == 0 || int64(len(rest)) < size+2 {
			return plain
		}
		plain, body = append(plain, rest[:size]...), []byte(rest[size+2:])
	}
}

func (s *Server) list(w http.ResponseWriter, prefix, after, most string) {
	type content struct {
		Key          string
		LastModified string
		Size         int
	}
	var keys []string
	for key := range s.objects {
		if strings.HasPrefix(key, prefix) && key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	limit := 7 // so that there are pages
	if n, err := strconv.Atoi(most); err == nil {
		limit = min(limit, n)
	}
	result := struct {
		XMLName               xml.Name `xml:"ListBucketResult"`
		IsTruncated           bool
		NextContinuationToken string `xml:",omitempty"`
		Contents              []content
	}{IsTruncated: len(keys) > limit}
	for _, key := range keys[:min(limit, len(keys))] {
		result.Contents = append(result.Contents, content{
			key, s.objects[key].written.Format("2006-01-02T15:04:05.000Z"), len(s.objects[key].data),
		})
		if result.IsTruncated {
			result.NextContinuationToken = key
		}
	}
	reply(w, result)
}

func reply(w http.ResponseWriter, result any) {
	w.Header().Set("Content-Type", "application/xml")
	_ = xml.NewEncoder(w).Encode(result)
}

func fail(w http.ResponseWriter, r *http.Request, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_ = xml.NewEncoder(w).Encode(struct {
			XMLName xml.Name `xml:"Error"`
			Code    string
			Message string
		}{Code: code, Message: "the server of the test says so"})
	}
}
