package s3store

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/spillway-ml/spillway/activities/artifact"
)

// aboutKey is the key of something that is said about an artifact.
func (s *Store) aboutKey(digest, name string) string { return s.key(about + digest + "/" + name) }

// stamp is a name that nobody has given before; it begins with the time.
func stamp() string { return fmt.Sprintf("%016x-%s", time.Now().UnixNano(), rand.Text()[:10]) }

// stamped is the time of a stamp; the zero time of what is none.
func stamped(name string) time.Time {
	digits, _, _ := strings.Cut(name, "-")
	nanoseconds, err := strconv.ParseInt(digits, 16, 64)
	if err != nil {
		return time.Time{}
	}
	return time.Unix(0, nanoseconds)
}

// mark notes that somebody has put an artifact that was there, or asked for it.
func (s *Store) mark(ctx context.Context, digest string) error {
	return s.note(ctx, s.aboutKey(digest, markedBy+stamp()), "")
}

// each calls do with every object whose key begins with the prefix.
func (s *Store) each(ctx context.Context, prefix string, do func(name string, object types.Object) error) error {
	pages := s3.NewListObjectsV2Paginator(s.client, &s3.ListObjectsV2Input{
		Bucket: &s.location.Bucket, Prefix: aws.String(s.key(prefix)),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return s.explain(err)
		}
		for _, object := range page.Contents {
			if err := do(s.name(aws.ToString(object.Key)), object); err != nil {
				return err
			}
		}
	}
	return nil
}

// written is a time of S3 by the clock of this machine, or later.
func (s *Store) written(at *time.Time) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return aws.ToTime(at).Add(s.behind)
}

// digestOf is the digest of the artifact that is stored under a name; empty where it is none.
func digestOf(name string) string {
	if len(name) <= fanOut || name[fanOut] != '/' {
		return ""
	}
	digest := name[:fanOut] + name[fanOut+1:]
	if artifact.CheckDigest(digest) != nil {
		return ""
	}
	return digest
}

// said is what the name of an object says about an artifact: its digest and what.
func said(name string) (digest, what string) {
	rest, is := strings.CutPrefix(name, about)
	if !is {
		return "", ""
	}
	digest, what, _ = strings.Cut(rest, "/")
	if artifact.CheckDigest(digest) != nil {
		return "", ""
	}
	return digest, what
}

// staleMark is how old a mark of an artifact that is not there must be to go: who has made it has long put the bytes.
const staleMark = 24 * time.Hour

// catalogue is what a listing has seen.
type catalogue struct {
	found    map[string]*artifact.Info // by digest
	known    map[string]bool           // names of marks and of what was put again
	main     map[string]bool           // digests that are stored under their own key
	again    map[string]bool           // digests of which there is what was put again
	last     map[string]mark           // by digest
	copies   map[string]mark           // by digest: of what was put again, that which is left
	obsolete []string                  // names of marks and of copies that nobody needs any more
}

// mark is one that somebody has put an artifact again, or asked for it.
type mark struct {
	name string
	at   time.Time
}

// see takes in an object.
func (c *catalogue) see(name string, object types.Object, at time.Time) {
	digest, what := said(name)
	switch stored := digestOf(name); {
	case stored != "":
		c.main[stored] = true
		c.bytes(stored, object, at)
	case strings.HasPrefix(what, againBy):
		c.known[name], c.again[digest] = true, true
		c.bytes(digest, object, at)
		c.latest(c.copies, digest, mark{name, at})
	case strings.HasPrefix(what, markedBy):
		c.known[name] = true
		c.latest(c.last, digest, mark{name, at})
	}
}

// latest keeps, of several objects about an artifact, the one that was written last.
func (c *catalogue) latest(kept map[string]mark, digest string, this mark) {
	before := kept[digest]
	if before.at.After(this.at) {
		this, before = before, this
	}
	if before.name != "" {
		c.obsolete = append(c.obsolete, before.name)
	}
	kept[digest] = this
}

// bytes takes in an object that is an artifact.
func (c *catalogue) bytes(digest string, object types.Object, at time.Time) {
	info := c.found[digest]
	if info == nil {
		info = &artifact.Info{Digest: digest, Bytes: aws.ToInt64(object.Size)}
		c.found[digest] = info
	} else {
		info.Again = true
	}
	if at.After(info.Written) {
		info.Written = at
	}
}

// conclude says of artifacts what their marks say, and returns the digests that are not stored under their own key.
func (c *catalogue) conclude(now time.Time) (mainless map[string]bool) {
	for digest, mark := range c.last {
		info := c.found[digest]
		switch {
		case info == nil && now.Sub(mark.at) > staleMark:
			c.obsolete = append(c.obsolete, mark.name)
		case info == nil: // who has made it is about to put the bytes
		default:
			info.Again = true
			if mark.at.After(info.Written) {
				info.Written = mark.at
			}
		}
	}
	mainless = map[string]bool{}
	for digest := range c.again {
		if !c.main[digest] {
			mainless[digest] = true
		}
	}
	return mainless
}

// List calls each with every artifact once. What is put meanwhile may be left out. Of several marks of an artifact it
// leaves the last, and of several copies that were put while it was about to be removed as well.
func (s *Store) List(ctx context.Context, each func(artifact.Info) error) error {
	c := catalogue{
		found: map[string]*artifact.Info{}, known: map[string]bool{}, main: map[string]bool{}, again: map[string]bool{},
		last: map[string]mark{}, copies: map[string]mark{},
	}
	err := s.each(ctx, "", func(name string, object types.Object) error {
		c.see(name, object, s.written(object.LastModified))
		return nil
	})
	if err != nil {
		return fmt.Errorf("list artifacts: %w", err)
	}
	mainless := c.conclude(time.Now())
	s.mu.Lock()
	s.known, s.mainless = c.known, mainless
	s.mu.Unlock()
	for _, name := range c.obsolete { // what is left is removed the next time
		if err := s.remove(ctx, s.key(name)); err != nil {
			return fmt.Errorf("list artifacts: %w", err)
		}
	}
	for _, info := range c.found {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("list artifacts: %w", err)
		}
		if err := each(*info); err != nil {
			return err
		}
	}
	return nil
}

// Usage returns how many bytes all objects below the prefix take.
func (s *Store) Usage(ctx context.Context) (bytes int64, err error) {
	err = s.each(ctx, "", func(_ string, object types.Object) error {
		bytes += aws.ToInt64(object.Size)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("measure the artifact store %s: %w", s.location.Place(), err)
	}
	return bytes, nil
}

// Pins calls each with every pin. Its time is by the clock of who has made it.
func (s *Store) Pins(ctx context.Context, each func(artifact.Info) error) error {
	latest := map[string]time.Time{}
	err := s.each(ctx, pins, func(name string, _ types.Object) error {
		digest, made, _ := strings.Cut(strings.TrimPrefix(name, pins), "/")
		if at := stamped(made); artifact.CheckDigest(digest) == nil && !latest[digest].After(at) {
			latest[digest] = at
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list artifacts that were sent: %w", err)
	}
	for digest, at := range latest {
		if err := each(artifact.Info{Digest: digest, Written: at, Again: true}); err != nil {
			return err
		}
	}
	return nil
}

// Pin keeps an artifact, from now on, as one that somebody from outside has put. Each pin is an object of its own, so
// that none that is made meanwhile goes with an older one.
func (s *Store) Pin(ctx context.Context, digest string) error {
	if err := artifact.CheckDigest(digest); err != nil {
		return fmt.Errorf("pin artifact: %w", err)
	}
	if err := s.note(ctx, s.key(pins+digest+"/"+stamp()), ""); err != nil {
		return fmt.Errorf("pin artifact %s: %w", digest, s.explain(err))
	}
	return nil
}

// Unpin removes the pins that were not made after then; it is no error when there is none.
func (s *Store) Unpin(ctx context.Context, digest string, then time.Time) error {
	if err := artifact.CheckDigest(digest); err != nil {
		return fmt.Errorf("unpin artifact: %w", err)
	}
	folder := pins + digest + "/"
	var old []string
	err := s.each(ctx, folder, func(name string, _ types.Object) error {
		if !stamped(strings.TrimPrefix(name, folder)).After(then) {
			old = append(old, name)
		}
		return nil
	})
	for _, name := range old {
		err = cmp.Or(err, s.remove(ctx, s.key(name)))
	}
	if err != nil {
		return fmt.Errorf("unpin artifact %s: %w", digest, err)
	}
	return nil
}

// state is what there is of an artifact.
type state struct {
	main      bool
	discarded bool
	marks     []string // keys
	copies    []string // keys of bytes that were put while it was about to be removed
	newer     bool     // it was put, or asked for, after the time in question
}

// inspect looks what there is of an artifact, and whether it was put or asked for after then. S3 tells time in seconds:
// what is of the same second counts as newer, unless List has seen it.
func (s *Store) inspect(ctx context.Context, digest string, then time.Time) (found state, err error) {
	seconds := then.Truncate(time.Second)
	err = s.each(ctx, about+digest+"/", func(name string, object types.Object) error {
		_, what := said(name)
		switch {
		case what == discarded:
			found.discarded = true
			return nil
		case strings.HasPrefix(what, markedBy):
			found.marks = append(found.marks, s.key(name))
		case strings.HasPrefix(what, againBy):
			found.copies = append(found.copies, s.key(name))
		default:
			return nil
		}
		s.mu.Lock()
		known := s.known[name]
		s.mu.Unlock()
		at := s.written(object.LastModified)
		found.newer = found.newer || at.After(then) || !known && !at.Truncate(time.Second).Before(seconds)
		return nil
	})
	if err != nil {
		return found, err
	}
	key := s.bytesKey(digest)
	main, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &s.location.Bucket, Key: &key})
	if absent(err) {
		return found, nil
	}
	if err != nil {
		return found, s.explain(err)
	}
	s.mu.Lock()
	known := s.known != nil && !s.mainless[digest]
	s.mu.Unlock()
	at := s.written(main.LastModified).Truncate(time.Second)
	found.main = true
	found.newer = found.newer || at.After(then) || !known && !at.Before(seconds)
	return found, nil
}

// remove removes an object; it is no error when there is none.
func (s *Store) remove(ctx context.Context, key string) error {
	_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.location.Bucket, Key: &key})
	return s.explain(err)
}

// Touch notes that an artifact was asked for from outside: somebody may be about to name it. It is no error when there
// is none. Whoever removes artifacts in this process sees it; what other processes remove meanwhile is gone.
func (s *Store) Touch(ctx context.Context, digest string) error {
	if err := artifact.CheckDigest(digest); err != nil {
		return fmt.Errorf("touch artifact: %w", err)
	}
	s.removing.RLock()
	defer s.removing.RUnlock()
	found, err := s.inspect(ctx, digest, time.Time{})
	if err == nil && (found.main || len(found.copies) > 0) {
		err = s.explain(s.mark(ctx, digest))
	}
	if err != nil {
		return fmt.Errorf("touch artifact %s: %w", digest, err)
	}
	return nil
}

// Discard says of an artifact that it is about to be removed, unless it was put or touched after then. Taken is false
// when it was, and when there is none.
func (s *Store) Discard(ctx context.Context, digest string, then time.Time) (taken bool, err error) {
	if err := artifact.CheckDigest(digest); err != nil {
		return false, fmt.Errorf("discard artifact: %w", err)
	}
	var found state
	err = s.explain(s.note(ctx, s.aboutKey(digest, discarded), ""))
	if err == nil {
		found, err = s.inspect(ctx, digest, then)
	}
	if err != nil {
		err = fmt.Errorf("discard artifact %s: %w", digest, err)
	}
	if err != nil || found.newer || !found.main && len(found.copies) == 0 {
		// Nobody else takes the word back, which may have been written whatever the error.
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.options.Patience)
		defer cancel()
		return false, errors.Join(err, s.Restore(bounded, digest))
	}
	s.mu.Lock()
	s.taken[digest] = then
	s.mu.Unlock()
	return true, nil
}

// Restore takes the word back that an artifact is about to be removed; it is no error when there is none. Where nobody
// knows whether a deletion still happens, the word stays until RestoreAll.
func (s *Store) Restore(ctx context.Context, digest string) error {
	if err := artifact.CheckDigest(digest); err != nil {
		return fmt.Errorf("restore artifact: %w", err)
	}
	s.mu.Lock()
	delete(s.taken, digest)
	doubtful := s.doubtful[digest]
	s.mu.Unlock()
	if doubtful {
		return nil
	}
	if err := s.remove(ctx, s.aboutKey(digest, discarded)); err != nil {
		return fmt.Errorf("restore artifact %s: %w", digest, err)
	}
	return nil
}

// Delete removes an artifact that Discard has taken. Gone is false when it is there all the same: somebody has put it,
// or asked for it, meanwhile.
func (s *Store) Delete(ctx context.Context, digest string) (gone bool, err error) {
	if err := artifact.CheckDigest(digest); err != nil {
		return false, fmt.Errorf("delete artifact: %w", err)
	}
	s.mu.Lock()
	then, taken := s.taken[digest]
	s.mu.Unlock()
	if taken {
		if err := s.delete(ctx, digest, then); err != nil {
			return false, fmt.Errorf("delete artifact %s: %w", digest, err)
		}
	}
	if err := s.Restore(ctx, digest); err != nil {
		return false, err
	}
	found, err := s.inspect(ctx, digest, time.Time{})
	if err != nil {
		return false, fmt.Errorf("delete artifact %s: %w", digest, err)
	}
	return !found.main && len(found.copies) == 0, nil
}

// delete removes what there is of an artifact, unless it was put or asked for after then.
func (s *Store) delete(ctx context.Context, digest string, then time.Time) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	found, err := s.inspect(ctx, digest, then)
	if err != nil || found.newer || !found.discarded {
		return err
	}
	key := s.bytesKey(digest)
	// It is not tried again: a second try may come behind a Put that has seen the first one's effect.
	_, err = s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &s.location.Bucket, Key: &key},
		func(o *s3.Options) { o.Retryer = aws.NopRetryer{} })
	if err != nil {
		s.mu.Lock()
		s.doubtful[digest] = s.doubtful[digest] || !refused(err)
		s.mu.Unlock()
		return s.explain(err)
	}
	for _, key := range append(found.copies, found.marks...) { // each has a name that nobody uses again
		if err := s.remove(ctx, key); err != nil {
			return err
		}
	}
	return nil
}

// refused says whether an error is S3's answer that it does not do what was asked for. Anything else, such as that its
// inside failed or that no answer came, leaves open whether it is done.
func refused(err error) bool {
	response, known := errors.AsType[*awshttp.ResponseError](err)
	return known && response.HTTPStatusCode()/100 == 4 && response.HTTPStatusCode() != http.StatusRequestTimeout
}

// staleUpload is how old an upload in parts must be that nobody completes any more.
const staleUpload = 24 * time.Hour

// RestoreAll takes back all that a killed process had discarded, and ends uploads in parts that have gone on for a day:
// what was sent of them takes room that nobody sees.
func (s *Store) RestoreAll(ctx context.Context) error {
	var words []string
	err := s.each(ctx, about, func(name string, _ types.Object) error {
		if _, what := said(name); what == discarded {
			words = append(words, s.key(name))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("restore artifacts: %w", err)
	}
	s.mu.Lock()
	clear(s.doubtful)
	clear(s.taken)
	s.mu.Unlock()
	for _, key := range words {
		if err := s.remove(ctx, key); err != nil {
			return fmt.Errorf("restore artifacts: %w", err)
		}
	}
	if err := s.wipe(ctx, artifact.Boards+"/", time.Now().Add(-artifact.BoardsFor)); err != nil {
		return fmt.Errorf("remove messages that nobody needs: %w", err)
	}
	return s.EndUploads(ctx, time.Now().Add(-staleUpload))
}

// EndUploads ends the uploads in parts that began before a time; RestoreAll does so with those of a day ago.
func (s *Store) EndUploads(ctx context.Context, before time.Time) error {
	pages := s3.NewListMultipartUploadsPaginator(s.client, &s3.ListMultipartUploadsInput{
		Bucket: &s.location.Bucket, Prefix: aws.String(s.key("")),
	})
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if code(err) == "AccessDenied" || code(err) == "NotImplemented" { // the rule of the bucket has to end them
			return nil
		}
		if err != nil {
			return fmt.Errorf("list uploads that were not completed: %w", s.explain(err))
		}
		for _, upload := range page.Uploads {
			if s.written(upload.Initiated).After(before) {
				continue
			}
			_, err := s.client.AbortMultipartUpload(ctx, &s3.AbortMultipartUploadInput{
				Bucket: &s.location.Bucket, Key: upload.Key, UploadId: upload.UploadId,
			})
			if err != nil && code(err) != "NoSuchUpload" {
				return fmt.Errorf("end an upload that was not completed: %w", s.explain(err))
			}
		}
	}
	return nil
}
