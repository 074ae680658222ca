package s3check_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/spillway-ml/spillway/activities"
	"github.com/spillway-ml/spillway/activities/artifact"
	"github.com/spillway-ml/spillway/activities/artifact/s3store"
	"github.com/spillway-ml/spillway/activities/artifact/storetest"
)

// openStore returns the store in a bucket.
func openStore(tb testing.TB, bucket, prefix string) *s3store.Store {
	tb.Helper()
	store, err := s3store.New(s3store.Location{
		Bucket: bucket, Prefix: prefix, Region: "us-east-1", Endpoint: gateway.endpoint,
	}, s3store.Options{Credentials: identity(), Spool: tb.TempDir()})
	if err != nil {
		tb.Fatal(err)
	}
	return store
}

func TestS3KeepsToTheContractOfStores(t *testing.T) {
	t.Parallel()
	storetest.Run(t, storetest.Options{
		Open: func(t *testing.T) artifact.Store {
			t.Helper()
			store := openStore(t, newBucket(t), "some/state")
			if _, err := store.Claim(t.Context(), t.Name()); err != nil {
				t.Fatal(err)
			}
			return store
		},
		Damage: func(t *testing.T, store artifact.Store, digest string) {
			t.Helper()
			in, _ := store.(*s3store.Store)
			spoil(t, in.Location().Bucket, in.Location().Prefix+"/"+digest[:2]+"/"+digest[2:])
		},
		Later: 2100 * time.Millisecond, Large: 96 << 20, Memory: 64 << 20, Races: 60,
	})
}

func TestAPrefixIsThatOfOneStateDirectory(t *testing.T) {
	t.Parallel()
	bucket := newBucket(t)
	store := openStore(t, bucket, "one")
	notes, err := store.Claim(t.Context(), "first")
	if err != nil || !slices.ContainsFunc(notes, func(note string) bool {
		return strings.Contains(note, "AbortIncompleteMultipartUpload")
	}) {
		t.Errorf("Claim: %q, %v; want to be told that no rule ends incomplete uploads", notes, err)
	}
	if _, err := openStore(t, bucket, "one").Claim(t.Context(), "first"); err != nil {
		t.Errorf("the same state directory once more: %v", err)
	}
	_, err = openStore(t, bucket, "one").Claim(t.Context(), "second")
	if !errors.Is(err, s3store.ErrTaken) || !strings.Contains(err.Error(), "one/spillway-owner") {
		t.Errorf("another state directory: %v, want %v and which object says so", err, s3store.ErrTaken)
	}
	if _, err := openStore(t, bucket, "two").Claim(t.Context(), "second"); err != nil {
		t.Errorf("beside it: %v", err)
	}
	// Each sees its own.
	if _, err := store.Put(t.Context(), strings.NewReader("a")); err != nil {
		t.Fatal(err)
	}
	err = openStore(t, bucket, "two").List(t.Context(), func(info artifact.Info) error {
		t.Errorf("the other prefix has %s", info.Digest)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

func TestAStoreIsTriedWithoutATrace(t *testing.T) {
	t.Parallel()
	bucket := newBucket(t)
	if _, err := openStore(t, bucket, "one").Claim(t.Context(), "first"); err != nil {
		t.Fatal(err)
	}
	before := objects(t, bucket, "")
	notes, err := openStore(t, bucket, "one").Try(t.Context()) // whoever it belongs to
	if err != nil || len(notes) == 0 {
		t.Errorf("Try: %q, %v; want to be told that no rule ends incomplete uploads", notes, err)
	}
	if after := objects(t, bucket, ""); !slices.Equal(before, after) {
		t.Errorf("it leaves %q, where there were %q", after, before)
	}
	if _, err := openStore(t, "no-such-bucket", "one").Try(t.Context()); err == nil ||
		!strings.Contains(err.Error(), "no-such-bucket") {
		t.Errorf("without a bucket: %v", err)
	}
}

func TestUploadsThatNobodyCompletesAreEnded(t *testing.T) {
	t.Parallel()
	bucket := newBucket(t)
	store := openStore(t, bucket, "state")
	started, err := plain().CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{
		Bucket: &bucket, Key: aws.String("state/ab/cd"),
	})
	if err != nil {
		t.Fatal(err)
	}
	uploads := func() []types.MultipartUpload {
		out, err := plain().ListMultipartUploads(t.Context(), &s3.ListMultipartUploadsInput{Bucket: &bucket})
		if err != nil {
			t.Fatal(err)
		}
		return out.Uploads
	}
	if err := store.RestoreAll(t.Context()); err != nil || len(uploads()) != 1 {
		t.Errorf("one that has just begun is ended: %v, %v", uploads(), err)
	}
	if err := store.EndUploads(t.Context(), time.Now().Add(time.Minute)); err != nil || len(uploads()) != 0 {
		t.Errorf("upload %s of long ago goes on: %v, %v", aws.ToString(started.UploadId), uploads(), err)
	}
}

func TestWrongCredentialsAndBucketsAreNamed(t *testing.T) {
	t.Parallel()
	bucket := newBucket(t)
	for name, c := range map[string]struct {
		bucket, key, secret string
		want                error
	}{
		"an unknown key":          {bucket, "nobody", secretKey, s3store.ErrCredentials},
		"a wrong secret":          {bucket, accessKey, "wrong", s3store.ErrCredentials},
		"a bucket that is not":    {"no-such-bucket", accessKey, secretKey, s3store.ErrNoBucket},
		"all as it should be":     {bucket, accessKey, secretKey, nil},
		"no credentials are sent": {bucket, "", "", s3store.ErrCredentials},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, err := s3store.New(s3store.Location{
				Bucket: c.bucket, Prefix: "p", Region: "us-east-1", Endpoint: gateway.endpoint,
			}, s3store.Options{Credentials: aws.NewCredentialsCache(signer{c.key, c.secret})})
			if err != nil {
				t.Fatal(err)
			}
			_, err = store.Claim(t.Context(), "me")
			if !errors.Is(err, c.want) {
				t.Errorf("Claim: %v, want %v", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), secretKey) {
				t.Errorf("the error shows the secret: %v", err)
			}
			_, err = store.Put(t.Context(), strings.NewReader("a"))
			if !errors.Is(err, c.want) {
				t.Errorf("Put: %v, want %v", err, c.want)
			}
			if _, err = store.Open(t.Context(), strings.Repeat("0", 64)); !errors.Is(err, c.want) && c.want != nil ||
				c.want == nil && !errors.Is(err, activities.ErrMissing) {
				t.Errorf("Open: %v, want %v", err, c.want)
			}
		})
	}
}
