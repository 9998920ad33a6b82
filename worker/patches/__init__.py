"""Development only: the queue of patches against upstream, judged before an image is built."""
