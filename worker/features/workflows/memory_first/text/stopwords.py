"""Stopwords: words at which terms end, and words that are too general to be terms."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sluice.worker.features.rag.text.languages import COMMON_WORDS, ENGLISH


def word_set(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: Words in addition to the most common ones of each language: function words, and verbs and
#: adjectives that say nothing about the topic. A term ends at any of them.
_BREAKING: Final = {
    ENGLISH: word_set(
        "about above according across actually after afterwards again against ago ahead almost "
        "alone along already also although always am amid among amongst another any anybody anyone "
        "anything anyway anywhere apart around aside ask asked asking asks away back became "
        "because become becomes been before beforehand began begin beginning begins behind being "
        "believe below beneath beside besides best better between beyond big both bring brings "
        "brought build builds built call called calling calls came cannot cause caused causes "
        "certain certainly clear clearly come comes coming completely consider contain contains "
        "could couldn did didn differ different directly doesn doing don done down due during each "
        "earlier either else elsewhere end ended ending ends enough entire entirely especially etc "
        "even ever every everybody everyone everything everywhere exact exactly except far few "
        "fewer find finds first five follow followed following follows former forth found four "
        "fully further furthermore gave general generally get gets getting give given gives giving "
        "go goes going gone good got great had hardly has hasn haven having he hence her here hers "
        "herself high him himself his hold holds however i immediately indeed instead into isn "
        "it's its itself just keep keeping keeps kept know known knows last later latter lead "
        "leads least leave leaves leaving led left less let lets like likely little long longer "
        "look looking looks lot made mainly make makes making many may maybe me mean means meant "
        "meanwhile might mine more moreover most mostly much must my myself name named namely "
        "names near nearly necessary need needed needs neither never nevertheless new next nine no "
        "nobody none nonetheless nor normal normally nothing now nowhere obviously off often ok "
        "old once one ones only onto other others otherwise ought our ours ourselves out outside "
        "over overall own particular particularly per perhaps please plus possible possibly "
        "probably provide provided provides put puts putting quite rather read reading reads "
        "really recent recently refer refers regard regarding relatively remain remains run "
        "running runs said same saw say saying says second see seem seemed seems seen send sending "
        "sends sent set sets setting seven several shall she should show shown shows side similar "
        "simple simply since six small so some somebody somehow someone something sometimes "
        "somewhere soon start started starting starts stay stays still stop stopped stops such "
        "sure take taken takes taking tell tells ten than thank thanks that's them themselves then "
        "thence thereby therefore these thing things think third those though three through "
        "throughout thus till together told too took toward towards tried tries try trying turn "
        "turned turns twice two under unless unlike until up upon us use used useful uses using "
        "usual usually various very via want wanted wants way ways we well went weren whatever "
        "whenever whereas wherever whether while whoever whole whom whose wide within without won "
        "would wouldn write writes writing written wrote yes yet you your yours yourself zero able "
        "add added adding adds allow allowed allows appear appears apply applied applies based "
        "change changed changes check checked checks create created creates define defined defines "
        "depend depends describe described describes ensure ensures exist exists expect expected "
        "fail failed fails happen happened happens help helps include included includes including "
        "involve learn lose loses lost mention move moved moves occur occurs open opened opens "
        "pass passed passes prevent prevents receive received receives reach reached reaches "
        "require required requires return returned returns save saved saves support supported "
        "supports wait waited waiting waits work worked working works answer answered answers "
        "bigger does full ready smaller larger bad hard easy short true false wrong right current "
        "currently available common default important main specific single multiple additional "
        "extra free real actual original previous empty equal whichever nobody's today yesterday "
        "tomorrow january february march april june july august september october november "
        "december monday tuesday wednesday thursday friday saturday sunday longest shortest "
        "largest smallest oldest newest latest earliest biggest highest lowest fastest slowest mr "
        "mrs ms dr inc ltd et al eg ie vs cf"
    ),
    "de": word_set(
        "aber alle allem allen aller alles also am andere anderen anderer anderes beim bereits bis "
        "bin da dabei dadurch dafür daher damit dann daran darauf daraus darf darin darüber darum "
        "davon davor dazu dein denen denn deren derer dessen deshalb dies diese diesem diesen "
        "dieser dieses doch dort du durch dürfen eben eigentlich einige einigen einiger eines "
        "einmal entweder erst etwa etwas euch euer gab ganz gegen gehen geht gerade gewesen gibt "
        "gut habe haben hatte hatten hier hin hinter ich ihm ihn ihnen ihr ihre ihrem ihren ihrer "
        "immer indem ins irgend ja jede jedem jeden jeder jedes jedoch jemand jene jetzt kann kein "
        "keine keinem keinen keiner können könnte kommt lassen macht machen man manche mehr mein "
        "mich mir mit muss müssen nachdem neben nein neu neue neuen nichts noch nun nur ob obwohl "
        "ohne schon sehr sei sein seine seinem seinen seiner seit selbst sind so sobald sogar "
        "solche soll sollen sollte sondern sonst soweit steht über um und uns unser unter viel "
        "viele vom vor während wann war waren warum weg wegen weil weiter weitere welche welchem "
        "welchen welcher weniger wenig wieder will wir wird wo wollen worden wurde wurden zum zur "
        "zwar zwei zwischen bzw usw zb dh ggf alt besser groß klein erste ersten zweite drei heißt "
        "nimmt braucht bleibt stellt liegt läuft januar februar märz april mai juni juli august "
        "september oktober november dezember"
    ),
    "fr": word_set(
        "afin ai ainsi alors après assez aucun aucune aujourd auquel aussi autre autres avait "
        "avant avez avoir beaucoup bien bon car cela celle celles celui cependant certain certaine "
        "ces cet cette ceux chaque chez ci comment contre d'un dans depuis dernier derrière deux "
        "devant doit donc dont doivent déjà encore enfin ensuite entre environ es eu eux faire "
        "fait faut fois font grand hors ici ils jamais je jusque l'on leur leurs lors lorsque lui "
        "là me même mes mieux moi moins mon ni non nos notre nous nouveau nouvelle on ont parce "
        "parfois part pendant peu peut peuvent plusieurs plutôt pourquoi premier première presque "
        "puis puisque quand quatre quelque quelques quels quelles quoi sans sera selon si sinon "
        "soit sommes sous souvent suis sur tant tel telle tes toi ton toujours tous tout toute "
        "toutes trois trop très tu un une va vers voici voilà votre vous vont y à était étaient "
        "été être autour ça janvier février mars avril mai juin juillet août septembre octobre "
        "novembre décembre"
    ),
    "es": word_set(
        "a ahora algo alguien alguna algunas alguno algunos allí ante antes aquel aquella aquí así "
        "aunque bajo bien cada casi cierto cinco contra cual cuales cualquier cuatro cuyo debe "
        "deben dentro desde después donde dos durante e él ella ellas ellos embargo encima "
        "entonces entre era eran eres ese eso esos esa esas está están estaba este esto estos "
        "estas estar fueron gran hace hacen hacer hacia han hasta hay incluso junto la las le les "
        "luego mientras mismo misma mi mis mucho muchos nada nadie ni ningún ninguna nos nosotros "
        "nuestro nuevo nueva nunca otra otras otro otros para parte pero poco porque primera "
        "primero primer puede pueden pues quien quienes sea ser si sí sido siempre sin sino sobre "
        "solo sólo suele tal también tampoco tan tanto te tener tiene tienen toda todas todavía "
        "todo todos tras tres tu tus un unas unos usted ustedes va varias varios veces vez ya yo "
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"
    ),
    "it": word_set(
        "a abbiamo ad agli ai alcuni alcune allora alle altri altra altre altro ancora anni aveva "
        "avere bene c'è chi ci ciascuno cioè col come con cui dagli dal dalla dalle degli dei dell "
        "delle dello dentro deve devono dopo due ed era erano essere fa fare fatto fino fra già "
        "gli ha hanno ho io l'un la lei lo loro lui ma meno mentre mia mio molti molto ne negli "
        "nei nell nella nelle nessuno niente noi nostra nostro nulla o ogni ognuno oltre ora "
        "perché però poco poi possono prima primo può qualche quali quale quando quanto quasi "
        "quella quelle quelli quello questi queste quindi se sempre senza sia solo sopra sotto sta "
        "stata stato stati su sua sue sugli sui sulla suo suoi tale tra tre troppo tu tutta tutte "
        "tutti tutto un uno va verso vi via voi gennaio febbraio marzo aprile maggio giugno luglio "
        "agosto settembre ottobre novembre dicembre"
    ),
    "pt": word_set(
        "ainda algo alguém algum alguma algumas alguns além ambos ante antes ao aos apenas após "
        "aquela aquele aqui aquilo as assim até cada com como contra cujo das de dela dele deles "
        "depois desde deve devem disso dois duas durante ela elas ele eles em embora enquanto "
        "então entre era eram essa essas esse esses esta estas este estes está estão eu fazer foi "
        "foram há isso isto já lhe logo mas mesmo mesma meu minha muita muitas muito muitos nada "
        "nas nem nenhum nessa nesse nesta neste ninguém nos nossa nosso nova novo nunca num numa "
        "onde os ou outra outras outro outros para pela pelas pelo pelos pode podem pois porque "
        "pouco primeira primeiro qual quais qualquer quanto quase quem sem sempre sendo ser será "
        "seus si sob sobre sua suas só tal também tanto tem têm ter toda todas todo todos três tu "
        "tudo um umas uns vai você vocês vez"
    ),
    "nl": word_set(
        "al alle alleen alles alsof altijd ander andere anders beide ben beter bijna binnen boven "
        "buiten dan daar daarna daarom deze dezelfde die dit doen dus echter een eens eerst eerste "
        "elk elke enkele enz ga gaan geen geweest goed haar had hadden heb hebben heel hem hen "
        "hier hoe hun ieder iedere iemand iets ik ja je jij jou jullie kon kunnen kunt laatste "
        "later maken meer men mijn minder moet moeten mogen na nadat nieuw nieuwe niemand niets "
        "nodig nooit nu of onder ons onze ook over reeds samen sinds slechts sommige soms steeds "
        "tegen ten ter terwijl toch toen tot tussen twee u uit uw vaak veel vele volgens volgende "
        "vooral waarom wanneer was waren we wel welke werden wij wil willen zal ze zeer zelf zich "
        "zijn zo zoals zonder zou zouden drie"
    ),
    "sv": word_set(
        "all alla allt alltid andra annan annat antingen använda bara blev bli blir bra bättre "
        "båda både denna deras dess dessa detta dig din dit ditt du där därför då efter eftersom "
        "egen ej en endast er ett flera fler finns få får före första genom ger gick gå går gör "
        "göra hade han hans har hela henne hennes här hon honom i igen in inga ingen inget innan "
        "inom ja jag kunde kom kommer lite man med medan mellan mer mest min mina mitt mot mycket "
        "måste många ned nej ni nog nu ny nya något några någon när nästa också olika oss redan "
        "samma sedan ska skall skulle som stor så sådan tack till två under upp ut utan vad varje "
        "var vara varför varit vem vid vilka vilken vill vilket vår våra åt än ännu är även över"
    ),
    "ru": word_set(
        "без более больше будет будто будут бы был была были было быть вам вас ведь весь вместе во "
        "вот всё всего всех вы где да даже два для до другие другой другая если есть ещё еще же "
        "зачем здесь из или им иногда их как какая какой когда кроме кто ли лишь лучше между меня "
        "мне много может можно мой мы над надо нас наш не него нее ней нет нибудь никогда ним них "
        "ничего но новый ну о об один однако она они оно от перед по под пока после потом потому "
        "почти при про раз разве с сам свой своих свою себе себя сегодня сейчас со совсем так "
        "также такой там тебя тем теперь то того тоже только том тот три тут ты у уж уже хорошо "
        "хоть чего чем через что чтобы чтоб чуть эта эти это этого этой этом этот эту я"
    ),
}
#: Words that form terms with others but are too general alone.
_GENERAL: Final = {
    ENGLISH: word_set(
        "action amount approach area aspect attempt bit body book bottom box bunch cases case "
        "chapter choice class code column comment concept condition content context copy cost "
        "count course data date day days detail details device difference direction document "
        "documents edge effect effort element entry environment error errors event events example "
        "examples fact factor feature features field fields figure file files form format function "
        "group groups guide half hand head heading home hour hours idea information input instance "
        "instruction issue item items job kind kinds language length level limit limits line lines "
        "link list lists local location machine manner matter measure member members memory method "
        "minute minutes model module moment month months note notes number numbers object objects "
        "operation option options order output page pages paper paragraph parameter part parts "
        "people percent period person phase picture piece place plan point points position problem "
        "process product program project property purpose question questions range rate reason "
        "reasons reference report request requests resource response rest result results role room "
        "row rule rules sample scale scope seconds section sections sense sentence series service "
        "shape share sheet sign site situation size sort source space standard state statement "
        "status step steps story string structure style subject summary system table task tasks "
        "term terms test tests text time times title tool tools top topic total type types unit "
        "user users value values variable version view volume weight word words world year years"
    ),
    "de": word_set(
        "anzahl art aufgabe beispiel bereich datei dateien daten ende fall fehler form frage "
        "funktion grund gruppe information jahr jahre liste mal möglichkeit name nummer ort person "
        "platz problem punkt seite stelle stück system tag tage teil text thema typ uhr welt wert "
        "werte wort worte zahl zeile zeit ziel"
    ),
}
#: Words followed by a verb or a predicate, and words followed by a noun.
BEFORE_VERBS: Final = {
    ENGLISH: word_set(
        "to can could may might must shall should will would cannot not never always it they we "
        "you he she who i is are was were be been being isn aren wasn don doesn didn won has have "
        "had"
    ),
}
BEFORE_NOUNS: Final = {
    ENGLISH: word_set(
        "a an the its their your our his her my this these those each every no any some of in with "
        "by per for from on at all many one two both such another other same own"
    ),
}
#: Function characters in scripts without spaces.
UNSPACED_BREAKING: Final = frozenset(
    "的了和是在有我他她它们这那不也就都而及与或于以为被把从对吗呢吧はのにをがでともへやからまでするしたますですこれそれ"
)


@lru_cache
def phrase_breakers(language: str) -> frozenset[str]:
    """Words at which a term ends, in lower case."""
    return COMMON_WORDS.get(language, frozenset()) | _BREAKING.get(language, frozenset())


def general_words(language: str) -> frozenset[str]:
    """Words that are not terms alone, in lower case."""
    return _GENERAL.get(language, frozenset())
