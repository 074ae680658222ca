package function

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net/http"
	"time"

	"github.com/spillway-ml/spillway/activities/access"
)

// maxUnproven and maxUnprovenUploads bound the bodies that arrive at a time from callers of whom nothing is proven
// yet: 96 MB of payloads in memory, and 70 MB of code. They do not bound those who sign the digest of their body as a
// header: that is verified before their body is read.
const maxUnproven, maxUnprovenUploads = 16, 1

// body returns the whole body of a request that is the owner's; errTooLong if it holds more than limit bytes. Nothing
// that a request says may be acted on before. One of whom nothing is proven takes one of the places meanwhile.
func (h *Host) body(r *http.Request, places chan struct{}, limit int64) ([]byte, error) {
	signature, err := parseSignature(r, time.Now())
	if err != nil {
		return nil, err
	}
	claimed := r.Header.Get(hashHeader)
	if claimed == "" {
		if err := h.place(places); err != nil {
			return nil, err
		}
		defer func() { <-places }()
	} else if !signature.verify(r, h.opts.Secret, claimed) {
		return nil, errSignature(wrongSignature)
	}
	content, err := readAtMost(r.Body, limit)
	if refusal, _ := errors.AsType[*access.Refusal](err); err != nil && refusal == nil && !errors.Is(err, errTooLong) {
		err = errContent("Could not read request body: " + err.Error())
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(content)
	digest := hex.EncodeToString(sum[:])
	if claimed == digest || claimed == "" && signature.verify(r, h.opts.Secret, digest) {
		return content, nil
	}
	return nil, errSignature(wrongSignature)
}

// place takes one of the places, and waits for one as long as callers are waited for.
func (h *Host) place(places chan struct{}) error {
	timer := time.NewTimer(h.opts.patience)
	defer timer.Stop()
	select {
	case places <- struct{}{}:
		return nil
	case <-timer.C:
		return errBusy()
	case <-h.closing:
		return errShutdown()
	}
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
