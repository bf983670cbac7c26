"""Recipe tables of image captioning."""

from dataclasses import dataclass

from regard.config.options import DataOptions, ImageAugmentOptions, TaskOptions, TrainOptions, require


@dataclass(frozen=True)
class CaptionData(DataOptions):
    """Images with one or several captions each: a table of image names and captions."""

    image: str = ""  # columns of the image's path (by default "image"),
    caption: str = ""  # and of the caption ("caption"); in JSON lines also a list of captions
    images: str = ""  # the folder or .zip that paths are relative to; by default the folder of the table
    max_length: int = 64


@dataclass(frozen=True)
class CaptionTrain(TrainOptions):
    label_smoothing: float = 0.0
    attention_penalty: float = 0.0  # λ of doubly stochastic attention: every cell should be attended to once

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.attention_penalty >= 0, f"train.attention_penalty = {self.attention_penalty}: must be 0 or more")


@dataclass(frozen=True)
class CaptionAugment(ImageAugmentOptions):
    """Of the images; a caption describes one image, so two cannot be mixed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("mixup", "cutmix"):
            value = getattr(self, name)
            require(value == 0, f"augment.{name} = {value}: mixed images have no caption; it is for task = 'classify'")
        require(self.repeats == 1, f"augment.repeats = {self.repeats}: only 1 is possible for task = 'caption'")


OPTIONS = TaskOptions(CaptionData, CaptionTrain, augment=CaptionAugment)
