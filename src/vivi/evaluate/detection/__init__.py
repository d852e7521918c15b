"""Object detection: RetinaNet with a feature pyramid on any encoder, and COCO's average precision."""
