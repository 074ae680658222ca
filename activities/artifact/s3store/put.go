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

// errSlow ends the reading into memory of a source that takes its time.
var errSlow = errors.New("the source is slow")

// take reads all of r, whose digest is known only then. No source, however slow, keeps others from being read: it loses
// its token, and what has come of it lies on the disk until there is all of it.
func (s *Store) take(ctx context.Context, r io.Reader) (taken *content, err error) {
	token, err := lend(ctx, s.small, quick)
	if err != nil {
		return nil, err
	}
	c := &content{release: token.end}
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
	n, err := io.CopyN(io.MultiWriter(&first, sum), readFunc(func(p []byte) (int, error) {
		if token.lost.Load() {
			return 0, errSlow
		}
		return source(p)
	}), partSize+1)
	switch {
	case err == nil, errors.Is(err, errSlow): // there is more
		if err = s.spool(c, &first); err == nil {
			n, err = s.fill(ctx, c, n, source, sum)
		}
	case errors.Is(err, io.EOF):
		c.small = first.Bytes()
		err = token.keep(ctx)
	}
	if err != nil {
		return nil, err
	}
	c.sum = sum.Sum(nil)
	c.ref = activities.Ref{Digest: hex.EncodeToString(c.sum), Bytes: n}
	return c, nil
}

// spool moves what is in memory into a file.
func (s *Store) spool(c *content, first *bytes.Buffer) error {
	if err := s.room(); err != nil {
		return err
	}
	file, err := os.CreateTemp(s.options.Spool, "spillway-artifact-")
	if err != nil {
		return err
	}
	c.file = file
	if err := os.Remove(file.Name()); err != nil {
		return err
	}
	if _, err = first.WriteTo(file); err != nil {
		return err
	}
	*first = bytes.Buffer{}
	c.release() // what waits for its turn lies on the disk
	c.release = func() {}
	return nil
}

// fill copies what is left of a source into the file, in which there are n bytes, and waits until it may be sent. It
// returns the size.
func (s *Store) fill(ctx context.Context, c *content, n int64, source io.Reader, sum hash.Hash) (int64, error) {
	var token *token
	for {
		if n > partSize && token == nil {
			var err error
			if token, err = lend(ctx, s.spooled, s.options.Patience); err != nil {
				return n, err
			}
			c.release = token.end
		}
		more, err := io.CopyN(io.MultiWriter(c.file, sum), source, max(partSize+1-n, partSize))
		n += more
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = s.room()
		}
		if err != nil {
			return n, err
		}
		if token != nil {
			token.renew()
		}
	}
	bound := s.small
	if token != nil {
		bound = s.large
		token.timer.Stop() // it is kept, where it is not lost, until the file goes
	}
	release, err := hold(ctx, bound)
	if err != nil {
		return n, err
	}
	before := c.release
	c.release = func() { release(); before() }
	return n, nil
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
	if c.ref.Bytes <= partSize {
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
