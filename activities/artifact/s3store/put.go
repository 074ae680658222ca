package s3store

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager"
	tmtypes "github.com/aws/aws-sdk-go-v2/feature/s3/transfermanager/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/wait"
)

// Put stores everything that r yields and returns its address once S3 has it.
func (s *Store) Put(ctx context.Context, r io.Reader) (activities.Ref, error) {
	what, err := s.take(ctx, r)
	if err != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", err)
	}
	defer what.close()
	if err := s.store(ctx, what); err != nil {
		return activities.Ref{}, fmt.Errorf("put artifact: %w", s.explain(err))
	}
	return what.ref, nil
}

// content is what is about to be sent: in memory, or in a file without a name.
type content struct {
	ref     activities.Ref
	sum     []byte // SHA-256
	small   []byte
	file    *os.File
	release func()
}

func (c *content) close() {
	if c.file != nil {
		_ = c.file.Close() // it has no name: nobody reads it again
	}
	c.release()
}

// reader reads it from its beginning.
func (c *content) reader() io.ReadSeeker {
	if c.file == nil {
		return bytes.NewReader(c.small)
	}
	return io.NewSectionReader(c.file, 0, c.ref.Bytes)
}

// take reads all of r, whose digest is known only then.
func (s *Store) take(ctx context.Context, r io.Reader) (taken *content, err error) {
	release, err := hold(ctx, s.small)
	if err != nil {
		return nil, err
	}
	c := &content{release: release}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	sum := sha256.New()
	source := readFunc(func(p []byte) (int, error) {
		if ctx.Err() != nil {
			return 0, context.Cause(ctx)
		}
		return r.Read(p)
	})
	var first bytes.Buffer
	n, err := io.CopyN(io.MultiWriter(&first, sum), source, partSize+1)
	switch {
	case err == nil: // there is more
		release()
		c.release = func() {} // what waits for its turn lies on the disk
		if n, err = c.spool(s.options.Spool, &first, source, sum); err != nil {
			return nil, err
		}
		if c.release, err = hold(ctx, s.large); err != nil {
			c.release = func() {}
			return nil, err
		}
	case errors.Is(err, io.EOF):
		c.small = first.Bytes()
	default:
		return nil, err
	}
	c.sum = sum.Sum(nil)
	c.ref = activities.Ref{Digest: hex.EncodeToString(c.sum), Bytes: n}
	return c, nil
}

// spool copies what was read, and the rest, into a file.
func (c *content) spool(dir string, first *bytes.Buffer, rest io.Reader, sum hash.Hash) (size int64, err error) {
	file, err := os.CreateTemp(dir, "spillway-artifact-")
	if err != nil {
		return 0, err
	}
	c.file = file
	if err := os.Remove(file.Name()); err != nil {
		return 0, err
	}
	begin, err := first.WriteTo(file)
	if err != nil {
		return 0, err
	}
	more, err := io.Copy(io.MultiWriter(file, sum), rest)
	return begin + more, err
}

// readFunc is an io.Reader.
type readFunc func(p []byte) (int, error)

func (f readFunc) Read(p []byte) (int, error) { return f(p) }

// mostTurns bounds how often the object may vanish between two looks; each time somebody has removed it just then.
const mostTurns = 5

// store sends what is not there yet. See the package's documentation for the order of the steps.
func (s *Store) store(ctx context.Context, c *content) error {
	key := s.bytesKey(c.ref.Digest)
	for turn := range mostTurns {
		made, err := s.create(ctx, key, c)
		if errors.Is(err, errConflict) && turn < mostTurns-1 && wait.For(ctx, conflictPause) {
			continue
		}
		if err != nil {
			return err
		}
		if !made {
			if err := s.mark(ctx, c.ref.Digest); err != nil {
				return err
			}
		}
		leaving, err := s.exists(ctx, s.aboutKey(c.ref.Digest, discarded))
		if err != nil {
			return err
		}
		if leaving { // it may be gone at any moment; what has a name of its own stays
			_, err := s.create(ctx, s.aboutKey(c.ref.Digest, againBy+stamp()), c)
			return err
		}
		if made {
			return nil
		}
		there, err := s.exists(ctx, key)
		if err != nil || there {
			return err
		}
	}
	return fmt.Errorf("artifact %s was removed each time that it was found: try again", c.ref.Digest)
}

// create makes an object where there is none, and says whether it did.
func (s *Store) create(ctx context.Context, key string, c *content) (made bool, err error) {
	if c.file == nil {
		in := &s3.PutObjectInput{
			Bucket: &s.location.Bucket, Key: &key, Body: c.reader(), ContentLength: &c.ref.Bytes,
			IfNoneMatch:    aws.String("*"),
			ChecksumSHA256: aws.String(base64.StdEncoding.EncodeToString(c.sum)),
		}
		if s.location.Encryption != "" {
			in.ServerSideEncryption = types.ServerSideEncryption(s.location.Encryption)
			in.SSEKMSKeyId = optional(s.location.KMSKey)
		}
		_, err = s.client.PutObject(ctx, in)
		return created(err)
	}
	if there, err := s.exists(ctx, key); err != nil || there { // it would be refused only once all was sent
		return false, err
	}
	in := &transfermanager.UploadObjectInput{
		Bucket: &s.location.Bucket, Key: &key, Body: c.reader(), IfNoneMatch: aws.String("*"),
	}
	if s.location.Encryption != "" {
		in.ServerSideEncryption = tmtypes.ServerSideEncryption(s.location.Encryption)
		in.SSEKMSKeyID = optional(s.location.KMSKey)
	}
	through := &completer{Client: s.client}
	_, err = s.uploader(through, c.ref.Bytes).UploadObject(ctx, in)
	return created(cmp.Or(err, through.refused))
}

// completer is a client that keeps to itself that somebody else was faster: the transfer manager writes to standard
// error what it is told of that, and it is no error.
type completer struct {
	*s3.Client

	refused error // the answer to the request that would have made the object
}

// CompleteMultipartUpload is called once, when all parts were sent.
func (c *completer) CompleteMultipartUpload(
	ctx context.Context, in *s3.CompleteMultipartUploadInput, options ...func(*s3.Options),
) (*s3.CompleteMultipartUploadOutput, error) {
	out, err := c.Client.CompleteMultipartUpload(ctx, in, options...)
	switch code(err) {
	case "PreconditionFailed", "ConditionalRequestConflict", "NoSuchUpload":
	default:
		return out, err
	}
	c.refused = err
	_, err = c.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
		Bucket: in.Bucket, Key: in.Key, UploadId: in.UploadId,
	})
	if err != nil && code(err) != "NoSuchUpload" {
		return nil, err
	}
	return &s3.CompleteMultipartUploadOutput{}, nil
}

// errConflict says that somebody else writes the object just now, and that nothing says whether he will succeed.
var errConflict = errors.New("somebody else writes it at the same time")

// conflictPause is how long he is given before it is tried again.
const conflictPause = 200 * time.Millisecond

// created reads the answer to a conditional write: 412 says that it is there, 409 that somebody writes it just now, and
// that there is no such upload any more, that an answer was lost.
func created(err error) (made bool, _ error) {
	switch code(err) {
	case "PreconditionFailed":
		return false, nil
	case "ConditionalRequestConflict", "NoSuchUpload":
		return false, fmt.Errorf("%w: %w", errConflict, err)
	}
	return err == nil, err
}

func optional(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// exists says whether there is an object.
func (s *Store) exists(ctx context.Context, key string) (bool, error) {
	_, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.location.Bucket, Key: &key})
	if absent(err) {
		return false, nil
	}
	return err == nil, err
}

// note makes an empty object.
func (s *Store) note(ctx context.Context, key string, text string) error {
	in := &s3.PutObjectInput{
		Bucket: &s.location.Bucket, Key: &key, Body: bytes.NewReader([]byte(text)),
		ContentLength: aws.Int64(int64(len(text))),
	}
	if s.location.Encryption != "" {
		in.ServerSideEncryption = types.ServerSideEncryption(s.location.Encryption)
		in.SSEKMSKeyId = optional(s.location.KMSKey)
	}
	_, err := s.client.PutObject(ctx, in)
	return err
}
