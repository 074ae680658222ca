package web

import (
	"errors"
	"io"
	"net/http"
	"regexp"

	"github.com/spillway-ml/spillway/activities"
)

// maxArtifact is the size of the largest artifact that the API takes, in bytes.
const maxArtifact = 5 << 30

// putArtifact answers PUT /api/v1/artifacts: it stores the body, as it is, and answers with its address once it is
// durable.
func (s *Server) putArtifact(r *http.Request) (activities.Ref, error) {
	if err := s.room.measure(); err != nil {
		return activities.Ref{}, err
	}
	content := &counted{Reader: r.Body, room: &s.room}
	ref, err := s.artifacts.Put(r.Context(), content)
	if err == nil {
		return ref, nil
	}
	_ = s.room.take(-content.taken) // it is refused nothing
	if full(err) || errors.Is(err, activities.ErrNoRoom) {
		return ref, insufficient("there is no room on the disk for the artifact: %v", err)
	}
	return ref, err
}

// artifactDigest is what names an artifact: its SHA-256.
var artifactDigest = regexp.MustCompile(`^[0-9a-f]{64}$`)

// artifact answers GET /api/v1/artifacts/{digest} with the bytes, and HEAD with whether they are here. When they turn
// out to be damaged, or the disk fails, the answer is broken off: a client that reads to the end never takes wrong
// bytes for right ones.
func (s *Server) artifact(w http.ResponseWriter, r *http.Request) {
	digest := r.PathValue("digest")
	if !artifactDigest.MatchString(digest) {
		s.refuse(w, r, Invalid("give the 64 hexadecimal digits that PUT /api/v1/artifacts has answered",
			"%.80q is not the digest of an artifact", digest))
		return
	}
	content, err := s.artifacts.Open(r.Context(), digest)
	if errors.Is(err, activities.ErrMissing) {
		err = NotFound("run again what makes it", "there is no artifact %s", digest)
	}
	if err != nil {
		s.refuse(w, r, err)
		return
	}
	defer content.Close() //nolint:errcheck // it was only read
	header := w.Header()
	header.Set("Content-Type", octets)
	header.Set("X-Content-Type-Options", "nosniff") // a page among the artifacts is no page of ours
	header.Set("Content-Disposition", "attachment")
	header.Set("Cache-Control", "private, max-age=31536000, immutable")
	if r.Method == http.MethodHead {
		w.WriteHeader(http.StatusOK)
		return
	}
	if _, err := io.Copy(w, content); err != nil {
		if r.Context().Err() == nil {
			s.logger.ErrorContext(r.Context(), "artifact not answered to its end", "digest", digest, "error", err)
		}
		panic(http.ErrAbortHandler) // the server's way to break an answer off
	}
}
