package function

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
)

// maxUnproven and maxUnprovenUploads bound the bodies that arrive at a time from callers of whom nothing is proven
// yet: 96 MB of payloads in memory, and 70 MB of code. They do not bound those who sign the digest of their body as a
// header: that is verified before their body is read.
const maxUnproven, maxUnprovenUploads = 16, 1

// arrival is the body of a request on its way in. Nothing that a request says may be acted on before prove has returned
// nil.
type arrival struct {
	host      *Host
	request   *http.Request
	signature signature
	claimed   string // the digest with which the signature has been verified; "" when that waits for the body
	sum       hash.Hash
	places    chan struct{} // where it has a place unless it is claimed
}

// arrive checks what can be known of a request before its body. The caller calls leave after success.
func (h *Host) arrive(r *http.Request, places chan struct{}) (*arrival, error) {
	s, err := parseSignature(r, time.Now())
	if err != nil {
		return nil, err
	}
	a := &arrival{host: h, request: r, signature: s, claimed: r.Header.Get(hashHeader), sum: sha256.New(), places: places}
	if a.claimed != "" {
		if !s.verify(r, h.opts.Secret, a.claimed) {
			return nil, errSignature(wrongSignature)
		}
		return a, nil
	}
	timer := time.NewTimer(h.opts.patience)
	defer timer.Stop()
	select {
	case places <- struct{}{}:
		return a, nil
	case <-timer.C:
		return nil, errBusy()
	case <-h.closing:
		return nil, errShutdown()
	}
}

// leave ends an arrival.
func (a *arrival) leave() {
	if a.claimed == "" {
		<-a.places
	}
}

// Read reads the body, and hashes what it reads.
func (a *arrival) Read(p []byte) (int, error) {
	n, err := a.request.Body.Read(p)
	a.sum.Write(p[:n])
	refusal, _ := errors.AsType[*access.Refusal](err)
	if err != nil && refusal == nil && !errors.Is(err, io.EOF) {
		err = errContent("Could not read request body: " + err.Error())
	}
	return n, err
}

// prove reads what is left of the body, and returns nil if the whole request is the owner's.
func (a *arrival) prove() error {
	if _, err := io.Copy(io.Discard, io.LimitReader(a, 4*maxUploadBytes)); err != nil {
		return err
	}
	digest := hex.EncodeToString(a.sum.Sum(nil))
	if a.claimed == digest || a.claimed == "" && a.signature.verify(a.request, a.host.opts.Secret, digest) {
		return nil
	}
	return errSignature(wrongSignature)
}

// body returns the whole body of a request that is the owner's; errTooLong if it holds more than limit bytes. One of
// whom nothing is proven takes one of the places meanwhile.
func (h *Host) body(r *http.Request, places chan struct{}, limit int64) ([]byte, error) {
	a, err := h.arrive(r, places)
	if err != nil {
		return nil, err
	}
	defer a.leave()
	content, err := readAtMost(a, limit)
	if err != nil {
		return nil, err
	}
	return content, a.prove()
}

const wrongSignature = "The request signature does not match: " +
	"sign the request as it is sent, body included, with the key of this host"

func errUnsigned() error {
	return &apiError{
		status: http.StatusForbidden, code: "MissingAuthenticationTokenException",
		message: "Missing Authentication Token: sign the request with " + algorithm +
			", in the header Authorization, with the key of this host.",
	}
}

func errIncomplete(why string) error {
	return &apiError{
		status: http.StatusForbidden, code: "IncompleteSignatureException",
		message: "The request signature is incomplete: " + why + ".",
	}
}

func errSignature(message string) error {
	return &apiError{status: http.StatusForbidden, code: "InvalidSignatureException", message: message + "."}
}

func errBusy() error {
	return &apiError{
		status: http.StatusServiceUnavailable, code: "ServiceUnavailableException",
		message: "Too many requests arrive at a time: try again, or sign the header " + hashHeader +
			", which needs no place among them.",
	}
}
