package s3store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsmiddleware "github.com/aws/aws-sdk-go-v2/aws/middleware"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
)

// ErrTaken says that the prefix belongs to another state directory.
var ErrTaken = errors.New("the prefix belongs to another state directory")

// ErrServer says that what answers is no S3.
var ErrServer = errors.New("the endpoint does not answer as S3 does")

// claimPatience bounds how long Claim takes: an endpoint that hangs is told by then.
const claimPatience = 30 * time.Second

// maxOwner bounds the name of an owner, in bytes.
const maxOwner = 256

// Claim makes the prefix that of one state directory, which ID names, and tries each right that the engine needs, so
// that what is missing is told at the start and not hours later. It wraps ErrTaken where the prefix belongs to another:
// whoever removes artifacts there would take those of the other for ones that nobody needs. Notes are what does not
// keep the store from working, and costs.
func (s *Store) Claim(ctx context.Context, id string) (notes []string, err error) {
	bounded, cancel := context.WithTimeout(ctx, min(claimPatience, 3*s.options.Patience))
	defer cancel()
	if err := s.claim(bounded, id); err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = errors.Join(err, bounded.Err())
		}
		return nil, fmt.Errorf("open the artifact store %s: %w", s.location.Place(), s.explain(err))
	}
	return s.examine(bounded), nil
}

func (s *Store) claim(ctx context.Context, id string) error {
	// A listing has an answer that says more than the headers of others, so it comes first.
	listed, err := s.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
		Bucket: &s.location.Bucket, Prefix: aws.String(s.key("")), MaxKeys: aws.Int32(1),
	})
	if err != nil {
		return err
	}
	if server, known := awsmiddleware.GetServerTime(listed.ResultMetadata); known {
		answered, _ := awsmiddleware.GetResponseAt(listed.ResultMetadata)
		s.mu.Lock()
		s.behind = max(0, answered.Sub(server).Truncate(time.Second))
		s.mu.Unlock()
	}
	if _, err = s.client.DeleteObject(ctx, &s3.DeleteObjectInput{ // there is none: it is the right that is tried
		Bucket: &s.location.Bucket, Key: aws.String(s.key("probe")),
	}); err != nil {
		return err
	}
	return s.own(ctx, id)
}

// Try tries what the engine does with a bucket, with an object that it removes again: it lists, writes, reads and
// deletes. It claims nothing, and may be called while the prefix belongs to somebody. Notes are as of [Store.Claim].
func (s *Store) Try(ctx context.Context) (notes []string, err error) {
	bounded, cancel := context.WithTimeout(ctx, min(claimPatience, 3*s.options.Patience))
	defer cancel()
	if err := s.try(bounded); err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = errors.Join(err, bounded.Err())
		}
		return nil, fmt.Errorf("try the artifact store %s: %w", s.location.Place(), s.explain(err))
	}
	return s.examine(bounded), nil
}

func (s *Store) try(ctx context.Context) (err error) {
	// A listing has an answer that says more than the headers of others, so it comes first.
	if _, err := s.client.ListObjectsV2(ctx, &s3.ListObjectsV2Input{
		Bucket: &s.location.Bucket, Prefix: aws.String(s.key("")), MaxKeys: aws.Int32(1),
	}); err != nil {
		return err
	}
	key, text := s.key("probe-"+rand.Text()), "an object with which rights are tried"
	if _, err := s.client.PutObject(ctx, s.message(key, text)); err != nil {
		return err
	}
	defer func() {
		_, failed := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.location.Bucket, Key: &key})
		err = errors.Join(err, failed)
	}()
	held, err := s.read(ctx, key)
	if err == nil && held != text {
		err = fmt.Errorf("%w: the object %s was written, and something else is read; look whether the endpoint is right",
			ErrServer, key)
	}
	return err
}

// message is the request that writes an object of a few bytes.
func (s *Store) message(key, text string) *s3.PutObjectInput {
	in := &s3.PutObjectInput{
		Bucket: &s.location.Bucket, Key: &key, Body: strings.NewReader(text), ContentLength: aws.Int64(int64(len(text))),
	}
	if s.location.Encryption != "" {
		in.ServerSideEncryption = types.ServerSideEncryption(s.location.Encryption)
		in.SSEKMSKeyId = optional(s.location.KMSKey)
	}
	return in
}

// read reads an object of a few bytes.
func (s *Store) read(ctx context.Context, key string) (string, error) {
	body, _, err := s.get(ctx, key, 0)
	if err != nil {
		return "", err
	}
	held, err := io.ReadAll(io.LimitReader(body, maxOwner))
	return string(held), errors.Join(err, body.Close())
}

// own writes whose the prefix is, or reads it.
func (s *Store) own(ctx context.Context, id string) error {
	in := s.message(s.key(owner), id)
	in.IfNoneMatch = aws.String("*")
	_, err := s.client.PutObject(ctx, in)
	made, err := created(err)
	if err != nil && !errors.Is(err, errConflict) {
		return err
	}
	held, err := s.read(ctx, s.key(owner))
	if err != nil {
		return err
	}
	switch {
	case held == id:
		return nil
	case made: // any server of HTTP may say that all went well
		return fmt.Errorf("%w: the object %s was written, and something else is read; look whether the endpoint is right",
			ErrServer, s.key(owner))
	default:
		return fmt.Errorf("%w; choose another prefix. If that directory is gone for ever, remove the object %s first",
			ErrTaken, s.key(owner))
	}
}

// examine says what the bucket is set to that costs.
func (s *Store) examine(ctx context.Context) (notes []string) {
	rules, err := s.client.GetBucketLifecycleConfiguration(ctx, &s3.GetBucketLifecycleConfigurationInput{
		Bucket: &s.location.Bucket,
	})
	switch {
	case code(err) == "AccessDenied":
		notes = append(notes, "whether bucket "+s.location.Bucket+" ends incomplete multipart uploads cannot be told: "+
			"s3:GetLifecycleConfiguration is not allowed")
	case err != nil && code(err) != "NoSuchLifecycleConfiguration" && code(err) != "NotImplemented": // it is not known
	case err != nil || !s.endsUploads(rules.Rules): // or the server knows no rules
		notes = append(notes, "bucket "+s.location.Bucket+" has no lifecycle rule that ends incomplete multipart uploads: "+
			"what killed ones leave costs until the next start a day later; add AbortIncompleteMultipartUpload for prefix "+
			s.key(""))
	}
	versions, err := s.client.GetBucketVersioning(ctx, &s3.GetBucketVersioningInput{Bucket: &s.location.Bucket})
	if err == nil && versions.Status == types.BucketVersioningStatusEnabled {
		notes = append(notes, "bucket "+s.location.Bucket+" keeps versions: what is removed gives no room back until a "+
			"lifecycle rule ends noncurrent versions")
	}
	return notes
}

// endsUploads says whether one of the rules ends incomplete uploads below the prefix.
func (s *Store) endsUploads(rules []types.LifecycleRule) bool {
	for _, rule := range rules {
		if rule.Status != types.ExpirationStatusEnabled || rule.AbortIncompleteMultipartUpload == nil {
			continue
		}
		prefix := aws.ToString(rule.Prefix) //nolint:staticcheck // rules of earlier tools have it here
		if rule.Filter != nil {
			prefix = aws.ToString(rule.Filter.Prefix)
			if rule.Filter.And != nil || rule.Filter.Tag != nil || rule.Filter.ObjectSizeGreaterThan != nil ||
				rule.Filter.ObjectSizeLessThan != nil {
				continue
			}
		}
		if strings.HasPrefix(s.key(""), prefix) {
			return true
		}
	}
	return false
}
