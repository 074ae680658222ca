package s3store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
)

// Open returns the bytes of digest. It wraps activities.ErrMissing when they are not here; the reader's last Read wraps
// activities.ErrCorrupt when the object does not match its name. A connection that breaks is opened again, at the byte
// where it broke.
func (s *Store) Open(ctx context.Context, digest string) (io.ReadCloser, error) {
	if err := artifact.CheckDigest(digest); err != nil {
		return nil, fmt.Errorf("open artifact: %w", err)
	}
	key := s.bytesKey(digest)
	body, size, err := s.get(ctx, key, 0)
	if absent(err) {
		key, body, size, err = s.getAgain(ctx, digest)
	}
	if absent(err) {
		return nil, fmt.Errorf("open artifact %s in %s: %w", digest, s.location.Place(), activities.ErrMissing)
	}
	if err != nil {
		return nil, fmt.Errorf("open artifact %s: %w", digest, s.explain(err))
	}
	read := &resumed{store: s, ctx: ctx, key: key, body: body, size: size, left: attempts - 1}
	return artifact.Verify(read, digest, "the object "+key), nil
}

// getAgain reads bytes that were put while the artifact was about to be removed. Each of those that are listed may go
// just now, but one that a Put has stored since the removal was decided on; so all of them are tried, the last first.
func (s *Store) getAgain(ctx context.Context, digest string) (key string, body io.ReadCloser, size int64, err error) {
	for range mostTurns { // List removes a copy once it has seen a later one
		var copies []string
		err = s.each(ctx, about+digest+"/"+againBy, func(name string, _ types.Object) error {
			copies = append(copies, s.key(name))
			return nil
		})
		if err != nil {
			return "", nil, 0, err
		}
		for _, key := range slices.Backward(copies) {
			if body, size, err = s.get(ctx, key, 0); !absent(err) {
				return key, body, size, err
			}
		}
		key = s.bytesKey(digest) // it may have been put once more
		body, size, err = s.get(ctx, key, 0)
		if !absent(err) || len(copies) == 0 {
			break
		}
	}
	return key, body, size, err
}

// get reads an object from a byte on. Size is that of all of it.
func (s *Store) get(ctx context.Context, key string, from int64) (body io.ReadCloser, size int64, err error) {
	in := &s3.GetObjectInput{Bucket: &s.location.Bucket, Key: &key}
	if from > 0 {
		in.Range = aws.String(fmt.Sprintf("bytes=%d-", from))
	}
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		return nil, 0, err
	}
	return out.Body, from + aws.ToInt64(out.ContentLength), nil
}

// resumed reads an object, and opens it again where the connection breaks.
type resumed struct {
	store *Store
	ctx   context.Context //nolint:containedctx // that of Open, which its answer is read under
	key   string
	body  io.ReadCloser
	size  int64
	read  int64
	left  int // how often a broken connection is opened again
}

// Read reads on.
func (r *resumed) Read(p []byte) (int, error) {
	n, err := r.body.Read(p)
	r.read += int64(n)
	if err == nil || err == io.EOF && r.read >= r.size { //nolint:errorlint // the end is EOF itself
		return n, err
	}
	if err = r.again(err); err != nil {
		return n, r.store.explain(err)
	}
	return n, nil
}

// again opens the object once more, at the byte where the connection broke, and returns nil when it could.
func (r *resumed) again(broke error) error {
	if r.ctx.Err() != nil {
		return context.Cause(r.ctx)
	}
	if r.left == 0 {
		return broke
	}
	r.left--
	_ = r.body.Close() // it is broken
	body, size, err := r.store.get(r.ctx, r.key, r.read)
	if err != nil {
		return errors.Join(broke, err)
	}
	r.body = body
	if size != r.size {
		return fmt.Errorf("%w; then it had %d bytes instead of %d", broke, size, r.size)
	}
	return nil
}

// Close ends the reading.
func (r *resumed) Close() error { return r.body.Close() }

// absent says whether an answer is that there is no such object.
func absent(err error) bool {
	if err == nil {
		return false
	}
	switch code(err) {
	case "NoSuchKey", "NotFound":
		return true
	case "NoSuchBucket":
		return false
	}
	response, known := errors.AsType[*awshttp.ResponseError](err)
	return known && response.HTTPStatusCode() == http.StatusNotFound && code(err) == ""
}
