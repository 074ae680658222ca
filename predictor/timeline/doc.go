// Package timeline lays out a run in time: what its attempts waited for, held and reported, and where its time went.
//
// All of it is pure: values in, values out, in sizes that can be drawn, whatever the number of attempts.
package timeline
